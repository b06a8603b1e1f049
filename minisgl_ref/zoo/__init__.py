"""The zoo: deliberate bugs, kept so that the judges can be shown to see them.

`fault.py` says what a fault is and loads an engine that has it; `deviations.py` lists what undoes
each of the deviations 1 to 8 of `spec/deviations.md`.

Nothing here is imported by the engine.
Chapter: spec/deviations.md
"""
