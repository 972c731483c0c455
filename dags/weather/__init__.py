"""Hourly weather of New York's three airports in 2013,
cut into the weekly slices that the example DAG retrains on.

``slices`` is standard library only, so that a DAG file may import it; the other modules need numpy
or torch and are imported inside tasks.
"""
