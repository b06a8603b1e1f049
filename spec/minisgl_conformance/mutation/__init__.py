"""Mutation testing: small changes of the engine's source, each of which the suite must notice.

`mutants.py` makes the changes, `judge.py` runs the suite on an engine that has one, `survivors.json` says why
a change that nobody noticed is none or not the suite's business, and `python -m minisgl_conformance.mutation`
prints the score. Cosmic Ray makes most of the changes; it is in the extra `dev`.

Guide: tests/README.md
"""
