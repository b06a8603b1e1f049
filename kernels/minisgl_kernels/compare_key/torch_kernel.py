"""compare_key without a compiler: halve the range in which the first difference can be.

A slice is compared at memory speed, so this takes log2(tokens) comparisons. It needs no torch; it
stands in the backend of that name, which must work where there is no compiler.
Definition: reference.py
"""

from __future__ import annotations

from minisgl_kernels.compare_key.reference import BYTES_PER_TOKEN, check_keys


def compare_key(a: bytes, b: bytes, /) -> int:
    """Count the leading tokens that two keys share (see reference.py)."""
    high = check_keys(a, b)
    low = 0
    if a[: high * BYTES_PER_TOKEN] == b[: high * BYTES_PER_TOKEN]:
        return high
    # [0, low) is equal; [low, high) holds the first difference
    while high - low > 1:
        middle = (low + high) // 2
        start, end = low * BYTES_PER_TOKEN, middle * BYTES_PER_TOKEN
        if a[start:end] == b[start:end]:
            low = middle
        else:
            high = middle
    return low
