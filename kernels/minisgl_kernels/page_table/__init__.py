"""Rows of the page table, written from pages and read as slots. `reference.py` is the definition."""
