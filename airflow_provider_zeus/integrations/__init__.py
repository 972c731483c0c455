"""Callbacks for frameworks that own the training loop. Each module imports its framework."""
