"""A linear layer. `reference.py` is the definition."""
