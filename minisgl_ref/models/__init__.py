"""Models: a transformers config and weights become something the engine can run.

`load.load` reads a real model, `tiny.tiny_llama` makes a small random one, `digest` replaces
arithmetic by an exact code of what is visible through the page table.

This package never schedules: it computes the logits of the batch it is given.
Chapter: spec/08-numerics.md
"""
