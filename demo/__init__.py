"""``make demo``: retrains a weather model week by week with Zeus,
and compares with always training at the default.

All its files are in ``.demo/`` of the checkout, and its servers listen on 127.0.0.1 only.
"""
