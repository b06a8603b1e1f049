"""Which query tokens and which slots belong to each request of a paged attention, checked.

Request r has the query tokens q_starts[r]:q_starts[r + 1]; its last query token stands at position
kv_lens[r] - 1, and position p of it is at slot page_table[rows[r], p].

This file never reads K or V. Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from minisgl_kernels.contract import Contract, can_read, check_cache_layout, check_in_range
from minisgl_spec.errors import ContractError

OPERATION = "paged_attention"
CONTRACT = Contract(
    OPERATION,
    q="[num_tokens, num_heads, head_dim] F",
    k_cache="[num_slots, num_kv_heads, head_dim] F",
    v_cache="[num_slots, num_kv_heads, head_dim] F",
    page_table="[num_rows + 1, row_width] i32",
    rows="[num_reqs] i32",
    q_starts="[num_reqs + 1] i32",
    kv_lens="[num_reqs] i32",
)


class Arguments(NamedTuple):
    """What says who attends to what: the arguments of paged_attention but scale, in their order."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    rows: Tensor
    q_starts: Tensor
    kv_lens: Tensor
    sliding_window: int | None


@dataclass(frozen=True)
class Request:
    """One request's part of a call.

    q_start, q_end:  [q_start, q_end) its query tokens, in the batch.
    kv_len:          tokens whose K and V it may see; query token i stands at position kv_len - q_end + i.
    first_key:       the first position that any of its query tokens sees.
    slots:           [kv_len - first_key] i32, of positions first_key:kv_len.
    """

    q_start: int
    q_end: int
    kv_len: int
    first_key: int
    slots: Tensor

    @property
    def first_query(self) -> int:
        """Position of its first query token."""
        return self.kv_len - (self.q_end - self.q_start)


def read_requests(arguments: Arguments) -> list[Request]:
    """Check the arguments of paged_attention and take them apart; requests without query tokens are left out.

    Raises: ContractError with the request and its numbers.
    """
    check_shapes(arguments)
    q, k_cache, _, page_table, rows, q_starts, kv_lens, sliding_window = arguments
    starts: list[int] = q_starts.tolist()
    if starts[0] != 0 or starts[-1] != q.shape[0]:
        raise ContractError(
            OPERATION, "q_starts from 0 to num_tokens", {"q_starts": starts, "num_tokens": q.shape[0]}
        )
    requests = []
    for index, (row, kv_len) in enumerate(zip(rows.tolist(), kv_lens.tolist(), strict=True)):
        q_start, q_end = starts[index], starts[index + 1]
        _check_request(index, row, q_end - q_start, kv_len, page_table)
        if q_end == q_start:
            continue
        first_query = kv_len - (q_end - q_start)
        first_key = 0 if sliding_window is None else max(0, first_query - sliding_window + 1)
        slots = page_table[row, first_key:kv_len]
        where = f"page_table[{row}, {first_key}:{kv_len}]"
        check_in_range(OPERATION, where, slots, "num_slots", k_cache.shape[0])
        requests.append(Request(q_start, q_end, kv_len, first_key, slots))
    return requests


def check(arguments: Arguments) -> None:
    """Refuse what read_requests refuses; while a CUDA graph is captured there are shapes only."""
    if can_read(arguments.q):
        read_requests(arguments)
    else:
        check_shapes(arguments)


def check_shapes(arguments: Arguments) -> None:
    """Refuse what can be refused without looking at a value."""
    *tensors, sliding_window = arguments
    CONTRACT.check(*tensors)
    check_cache_layout(OPERATION, arguments.k_cache, arguments.v_cache)
    check_sizes(arguments.q.shape[1], arguments.k_cache.shape[1], sliding_window)


def check_sizes(num_heads: int, num_kv_heads: int, sliding_window: int | None) -> None:
    """Refuse heads that do not divide and a window in which a query would not see itself."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        got = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
        raise ContractError(OPERATION, "num_heads a multiple of num_kv_heads >= 1", got)
    if sliding_window is not None and sliding_window < 1:
        raise ContractError(
            OPERATION,
            "sliding_window >= 1 or None",
            {"sliding_window": sliding_window},
            "A query sees itself.",
        )


def _check_request(index: int, row: int, q_len: int, kv_len: int, page_table: Tensor) -> None:
    num_table_rows, row_width = page_table.shape
    if not (0 <= row < num_table_rows and 0 <= q_len <= kv_len <= row_width):
        raise ContractError(
            OPERATION,
            "rows[r] in 0:len(page_table) and 0 <= q_len <= kv_lens[r] <= row_width",
            {
                "r": index,
                "rows[r]": row,
                "len(page_table)": num_table_rows,
                "q_len": q_len,
                "kv_lens[r]": kv_len,
                "row_width": row_width,
            },
            "q_len is q_starts[r + 1] - q_starts[r].",
        )
