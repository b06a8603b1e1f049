"""The device side: streams, the work of a batch, attention's inputs and sampling.

Chapter: spec/07-overlap.md
"""
