"""Prices and carbon intensities over time: how they are read, when to start by them, and at
which limit to train.
"""
