"""What a device is and draws, and how its power limit is set and given back."""
