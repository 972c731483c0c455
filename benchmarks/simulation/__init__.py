"""Replay of measured trainings through the product's own policies: what a policy costs,
without any training.
"""
