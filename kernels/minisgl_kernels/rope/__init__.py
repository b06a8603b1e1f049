"""Rotary position embedding. `reference.py` is the definition."""
