"""The operations an engine does on tensors: one definition each, and backends that agree with it.

Each folder is one operation. Its `reference.py` is the definition, in torch, with the arithmetic in
float64; a backend's version beside it has the same name and the same argument order. Copies agree to
the bit, arithmetic within an error bound that is derived in `reference.py`, never tuned.

Importing this package imports neither torch nor cffi; `backends.get` does.
Chapter: spec/08-numerics.md. Table of kernels and backends: kernels/README.md
"""

from minisgl_kernels.rope.parameters import rope_parameters

__all__ = ["rope_parameters"]
