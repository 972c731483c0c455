"""Attacks that were seen to work, each as a test that fails where it works again."""
