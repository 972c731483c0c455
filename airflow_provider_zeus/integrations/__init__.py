"""Frameworks that own the training loop, driven by a run handle. Each module imports its framework."""
