"""compare_key: the largest n such that a[0 : 4*n] == b[0 : 4*n]; keys are bytes, four per token.

a, b: bytes of any length, equal or not, in whole tokens; neither is changed. A token is compared as four
bytes, so byte order and sign do not matter. Result in tokens, 0 <= n <= min(len(a), len(b)) / 4.
Exact. Reads at most 2 * 4 * (n + 1) bytes, in this version one token at a time.
Versions: torch_kernel.py (halving, slices compared at memory speed), compare_key.c (64 bytes at a time).
Run: pytest tests/kernels -k compare_key
"""

from __future__ import annotations

from minisgl_spec.errors import ContractError

BYTES_PER_TOKEN = 4


def compare_key(a: bytes, b: bytes, /) -> int:
    """Count the leading tokens that two keys share.

    Raises: ContractError if a key is not bytes or ends within a token.
    """
    num_tokens = check_keys(a, b)
    for token in range(num_tokens):
        start = token * BYTES_PER_TOKEN
        if a[start : start + BYTES_PER_TOKEN] != b[start : start + BYTES_PER_TOKEN]:
            return token
    return num_tokens


def check_keys(a: bytes, b: bytes) -> int:
    """Return the tokens of the shorter key, having refused what is no key."""
    if type(a) is not bytes or type(b) is not bytes:
        types = {"a": type(a).__name__, "b": type(b).__name__}
        raise ContractError("compare_key", "a and b bytes", types)
    if (len(a) | len(b)) % BYTES_PER_TOKEN:
        raise ContractError(
            "compare_key",
            f"len(a) and len(b) multiples of {BYTES_PER_TOKEN}",
            {"len(a)": len(a), "len(b)": len(b)},
            "A key has four bytes per token.",
        )
    return min(len(a), len(b)) // BYTES_PER_TOKEN
