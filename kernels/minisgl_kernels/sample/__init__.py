"""From logits to a token. `reference.py` is the definition."""
