"""``make demo-levers``: when a run starts, whether it trains, and that it ends in time.

All its files are in ``.demo/`` of the checkout, and its servers listen on 127.0.0.1 only.
"""
