"""What to run next and why: pure functions of the trial log (sections 3 and 4 of the paper)."""
