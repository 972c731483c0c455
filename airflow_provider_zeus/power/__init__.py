"""Devices: how energy is measured, and how power limits are set and given back."""
