"""Prices and carbon intensities over time, and what follows from them: when to start, and at which limit. Pure."""
