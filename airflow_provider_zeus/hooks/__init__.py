"""The hook over the trial log."""
