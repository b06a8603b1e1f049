"""Attention through the page table. `reference.py` is the definition."""
