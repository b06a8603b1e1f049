"""Write K and V into slots. `reference.py` is the definition."""
