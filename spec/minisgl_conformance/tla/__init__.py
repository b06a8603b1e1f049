"""TLA+ both ways: TLC checks the models, recorded runs are checked against the models.

`tlc.py` runs TLC and reads what it prints, `models.py` holds every model to its manifest,
`traces.py` turns logs into TLA+ and has them validated, `graph.py` turns a dumped state graph into
programs. `python -m minisgl_conformance.tla` is their command line.

Nothing here knows an engine: programs and logs are the only vocabulary.
Chapter: tla/README.md
"""
