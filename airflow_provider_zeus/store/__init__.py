"""The trial log: one protocol, one way in."""
