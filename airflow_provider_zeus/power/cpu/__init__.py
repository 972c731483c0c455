"""Devices for processors: RAPL counters, and an estimate from CPU time."""
