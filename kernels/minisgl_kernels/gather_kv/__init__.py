"""Read K and V of slots. `reference.py` is the definition."""
