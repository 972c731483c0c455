"""Does each part do what it says?

The commands of that heading of docs/evidence/benchmarks.md hold parts against each other.
"""
