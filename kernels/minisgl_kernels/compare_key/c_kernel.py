"""compare_key in C: checks the keys, passes their bytes without a copy.

Definition: reference.py. Source: compare_key.c
"""

from __future__ import annotations

from minisgl_kernels.build import load
from minisgl_kernels.compare_key.reference import check_keys


def compare_key(a: bytes, b: bytes, /) -> int:
    """Count the leading tokens that two keys share (see reference.py)."""
    num_tokens = check_keys(a, b)
    return int(load("compare_key").lib.minisgl_compare_key(a, b, num_tokens))
