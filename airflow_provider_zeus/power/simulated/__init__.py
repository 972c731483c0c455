"""Simulated GPUs: models fitted to measured trainings, on a virtual clock."""
