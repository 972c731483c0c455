"""Alembic migrations of the SQL store, numbered from 0001."""
