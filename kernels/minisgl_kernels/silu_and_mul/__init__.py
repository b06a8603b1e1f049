"""The gated activation. `reference.py` is the definition."""
