"""Root mean square normalisation. `reference.py` is the definition."""
