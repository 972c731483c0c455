"""What does it cost? What the commands of that heading of docs/evidence/benchmarks.md fill,
load and measure.
"""
