"""Operators that train within the Zeus loop."""
