"""The digest model through every backend: a wrong slot, page or length changes it, clean cases do not.

A case is one request of a batch on pages out of order. Codes are stored by the backend and read back through
its page table and gather; the expected ones are the specification's fold over the tokens. Nothing is injected
where it would change nothing: what is read instead differs in content.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from minisgl_kernels.backends import Ops
from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.models.digest import DigestModel
from minisgl_spec.shadow import digest_codes

NUM_REQS, NUM_ROWS, VOCAB_SIZE, MOST_SLOTS = 20, 23, 50, 12
PAGE_SIZES = (1, 3, 4, 16, 64)
ROUNDS = 5  # injections into each request
CASES, MANY_CASES = 300, 10_000  # clean ones, and as many faults: of each kind a third, in the long run all


@dataclass(frozen=True)
class Batch:
    """Requests that are stored, each with one more token to come: request r has the row rows[r].

    tokens:      of each request, the last one not stored yet.
    page_table:  [num_rows + 1, row_width] i32 of slots.
    kv_lens:     what the next step is told, one per request: len(tokens[r]).
    """

    pool: MHAKVCache
    page_table: torch.Tensor
    rows: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    kv_lens: list[int]

    def copy(self) -> Batch:
        """The same pool, with a page table and lengths to spoil."""
        return replace(self, page_table=self.page_table.clone(), kv_lens=list(self.kv_lens))


Fault = Callable[[Ops, Batch, int, random.Random], None]


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def stored_batch(ops: Ops, model: DigestModel, rng: random.Random) -> Batch:
    """All tokens of each request but its last, written in one step; what a fault reads is the others'."""
    page_size = rng.choice(PAGE_SIZES)
    pages_per_row = -(-MOST_SLOTS // page_size)
    num_pages, row_width = NUM_REQS * pages_per_row + 3, pages_per_row * page_size
    pool = MHAKVCache(
        num_layers=1,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=1,
        head_dim=model.config.head_dim,
        dtype=torch.float32,
        ops=ops,
        fill=float("nan"),
    )
    page_table = torch.full((NUM_ROWS + 1, row_width), pool.dummy_slot, dtype=torch.int32)
    rows = tuple(rng.sample(range(NUM_ROWS), NUM_REQS))
    pages = i32(*rng.sample(range(num_pages), NUM_REQS * pages_per_row))
    page_idxs = torch.arange(pages_per_row, dtype=torch.int32).repeat(NUM_REQS)
    ops.write_page_table(page_table, i32(*rows).repeat_interleave(pages_per_row), page_idxs, pages, page_size)
    tokens = tuple(
        tuple(rng.choices(range(VOCAB_SIZE), k=rng.randint(2, MOST_SLOTS - 1))) for _ in range(NUM_REQS)
    )
    batch = Batch(pool, page_table, rows, tokens, [len(ids) for ids in tokens])
    starts, most = [0] * NUM_REQS, tuple(ids[:-1] for ids in tokens)
    without_last = replace(batch, tokens=most, kv_lens=[len(ids) for ids in most])
    run(model, without_last, starts, new_slots(ops, without_last, starts))
    return batch


def new_positions(batch: Batch, starts: list[int]) -> list[range]:
    return [range(start, len(ids)) for start, ids in zip(starts, batch.tokens, strict=True)]


def new_slots(ops: Ops, batch: Batch, starts: list[int]) -> torch.Tensor:
    """The slots of each request's tokens from a position on, read through the backend."""
    where = [
        (row, at) for row, ats in zip(batch.rows, new_positions(batch, starts), strict=True) for at in ats
    ]
    return ops.read_page_table(
        batch.page_table, i32(*(row for row, _ in where)), i32(*(at for _, at in where))
    )


def run(model: DigestModel, batch: Batch, starts: list[int], out_loc: torch.Tensor) -> list[int]:
    """The codes of each request's tokens from a position on, written to out_loc."""
    spans = new_positions(batch, starts)
    new = [ids[at] for ids, ats in zip(batch.tokens, spans, strict=True) for at in ats]
    q_starts = torch.tensor([0, *map(len, spans)]).cumsum(0).int()
    attn = AttentionBatch(batch.page_table, i32(*batch.rows), q_starts, i32(*batch.kv_lens))
    model.forward(torch.tensor(new), i32(*(at for ats in spans for at in ats)), out_loc, batch.pool, attn)
    return model.last_codes


def nothing(ops: Ops, batch: Batch, req: int, rng: random.Random) -> None:
    """A clean case."""


def wrong_slot(ops: Ops, batch: Batch, req: int, rng: random.Random) -> None:
    """One position that will be read names another slot, whose content differs."""
    row, position = batch.rows[req], rng.randrange(len(batch.tokens[req]) - 1)
    stored = batch.pool.k_cache(0)
    differs = (stored != stored[batch.page_table[row, position]]).flatten(1).any(dim=1)
    batch.page_table[row, position] = rng.choice(differs.nonzero().flatten().tolist())


def wrong_page(ops: Ops, batch: Batch, req: int, rng: random.Random) -> None:
    """One page that will be read is another, whose content differs as far as it is read."""
    row, page_size, num_read = batch.rows[req], batch.pool.page_size, len(batch.tokens[req]) - 1
    page_idx = rng.randrange(-(-num_read // page_size))
    here = slice(0, min(page_size, num_read - page_idx * page_size))
    by_page = batch.pool.k_cache(0).unflatten(0, (-1, page_size))[:, here]
    right = batch.page_table[row, page_idx * page_size] // page_size
    differs = (by_page != by_page[right]).flatten(1).any(dim=1)
    page = rng.choice(differs.nonzero().flatten().tolist())
    ops.write_page_table(batch.page_table, i32(row), i32(page_idx), i32(page), page_size)


def wrong_length(ops: Ops, batch: Batch, req: int, rng: random.Random) -> None:
    """The request's length is off by one, or by any other number that its row has room for."""
    right, longest = batch.kv_lens[req], batch.page_table.shape[1]
    lengths = [length for length in range(1, longest + 1) if length != right]
    batch.kv_lens[req] = rng.choice([right - 1, right + 1, rng.choice(lengths)])


FAULTS = (wrong_slot, wrong_page, wrong_length)


def verdicts(ops: Ops, fault: Fault) -> Iterator[bool]:
    """For each case whether the next token's digest is the expected one, with one fault in each request."""
    model, rng = DigestModel(VOCAB_SIZE, (), max(MOST_SLOTS, *PAGE_SIZES), ops), random.Random(7)
    while True:
        stored = stored_batch(ops, model, rng)
        starts = [len(ids) - 1 for ids in stored.tokens]
        out_loc = new_slots(ops, stored, starts)
        expected = [digest_codes(ids)[-1] for ids in stored.tokens]
        for _ in range(ROUNDS):
            batch = stored.copy()
            for req in range(NUM_REQS):
                fault(ops, batch, req, rng)
            codes = run(model, batch, starts, out_loc)
            yield from (code == right for code, right in zip(codes, expected, strict=True))


def count(ops: Ops, fault: Fault, num_cases: int) -> Counter[bool]:
    return Counter(right for right, _ in zip(verdicts(ops, fault), range(num_cases), strict=False))


def test_clean_cases_raise_no_alarm(ops: Ops) -> None:
    """Every digest is the fold over the tokens. (digest_is_the_models)"""
    assert count(ops, nothing, CASES) == {True: CASES}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_wrong_number_changes_the_digest(ops: Ops, fault: Fault) -> None:
    """A slot, page or length that reads other content is seen at the next token. (digest_is_the_models)"""
    assert count(ops, fault, CASES // 3) == {False: CASES // 3}


@pytest.mark.slow
def test_ten_thousand_clean_cases_raise_no_alarm(ops: Ops) -> None:
    """Not one of them. (digest_is_the_models)"""
    assert count(ops, nothing, MANY_CASES) == {True: MANY_CASES}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_of_ten_thousand_wrong_numbers_changes_the_digest(ops: Ops, fault: Fault) -> None:
    """Ten thousand slots, as many pages and as many lengths. (digest_is_the_models)"""
    assert count(ops, fault, MANY_CASES) == {False: MANY_CASES}
