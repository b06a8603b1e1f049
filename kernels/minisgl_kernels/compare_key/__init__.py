"""Where two keys begin to differ. `reference.py` is the definition."""
