"""Buttons on task instances."""
