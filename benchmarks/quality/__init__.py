"""How good is it? What the commands of that heading of docs/evidence/benchmarks.md replay,
count and write.
"""
