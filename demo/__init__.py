"""``make demo``: a bandit that retrains a weather model week by week, against always training with the default.

Everything it writes lies in ``.demo/`` of the checkout, and its servers listen on 127.0.0.1 only.
"""
