"""Rows of the embedding matrix. `reference.py` is the definition."""
