"""The digest model through every backend: one slot whose content differs changes it, clean cases do not.

A case is two requests on pages out of order. Their codes are stored by the backend and read back through
its page table and gather; the expected ones are the specification's fold over the tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from minisgl_kernels.backends import Ops
from minisgl_ref.engine.attention import AttentionBatch
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.models.digest import DigestModel
from minisgl_spec.shadow import digest_codes

NUM_PAGES, NUM_ROWS, VOCAB_SIZE = 24, 4, 50
CASES, MANY_CASES = 150, 10_000


@dataclass
class Case:
    """One request in a pool: its tokens, and the row that maps them."""

    pool: MHAKVCache
    page_table: torch.Tensor
    row: int
    tokens: list[int]


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def stored_case(ops: Ops, model: DigestModel, rng: random.Random) -> Case:
    """Two requests written in chunks; the second one's slots are what a wrong slot reads."""
    page_size = rng.choice([1, 3, 4])
    pool = MHAKVCache(
        num_layers=1,
        num_pages=NUM_PAGES,
        page_size=page_size,
        num_kv_heads=1,
        head_dim=model.config.head_dim,
        dtype=torch.float32,
        ops=ops,
        fill=float("nan"),
    )
    row_width = 8 * page_size
    page_table = torch.full((NUM_ROWS + 1, row_width), pool.dummy_slot, dtype=torch.int32)
    rows, pages = rng.sample(range(NUM_ROWS), 2), rng.sample(range(NUM_PAGES), 16)
    requests = []
    for number, row in enumerate(rows):
        mine = i32(*pages[8 * number : 8 * number + 8])
        ops.write_page_table(page_table, torch.full_like(mine, row), i32(*range(8)), mine, page_size)
        tokens = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(2, row_width - 1))]
        run(ops, model, Case(pool, page_table, row, tokens), 0, len(tokens))
        requests.append(Case(pool, page_table, row, tokens))
    return requests[0]


def run(ops: Ops, model: DigestModel, case: Case, start: int, end: int) -> list[int]:
    """The codes of tokens [start, end) of the request, read and written through the backend."""
    positions = i32(*range(start, end))
    out_loc = ops.read_page_table(case.page_table, torch.full_like(positions, case.row), positions)
    attn = AttentionBatch(case.page_table, i32(case.row), i32(0, end - start), i32(end))
    model.forward(torch.tensor(case.tokens[start:end]), positions, out_loc, case.pool, attn)
    return model.last_codes


def next_code(ops: Ops, model: DigestModel, case: Case, rng: random.Random) -> tuple[list[int], list[int]]:
    """The code of one more token, and what it must be."""
    case.tokens.append(rng.randrange(VOCAB_SIZE))
    end = len(case.tokens)
    return run(ops, model, case, end - 1, end), digest_codes(tuple(case.tokens))[-1:]


def spoil(case: Case, rng: random.Random) -> None:
    """Make one position that will be read name another slot, whose content differs."""
    position = rng.randrange(len(case.tokens))
    k = case.pool.k_cache(0)
    right = case.page_table[case.row, position].clone()
    others = [slot for slot in range(k.shape[0]) if not torch.equal(k[slot], k[right])]
    case.page_table[case.row, position] = rng.choice(others)


def verdicts(ops: Ops, num_cases: int, is_spoilt: bool) -> list[bool]:
    """For each case whether the digest is the expected one."""
    model, rng = DigestModel(VOCAB_SIZE, (), 64, ops), random.Random(7)
    found = []
    for _ in range(num_cases):
        case = stored_case(ops, model, rng)
        if is_spoilt:
            spoil(case, rng)
        codes, expected = next_code(ops, model, case, rng)
        found.append(list(codes) == list(expected))
    return found


def test_clean_cases_raise_no_alarm(ops: Ops) -> None:
    """Every digest is the fold over the tokens. (digest_is_the_models)"""
    assert all(verdicts(ops, CASES, is_spoilt=False))


def test_one_wrong_slot_changes_the_digest(ops: Ops) -> None:
    """A slot whose content differs is seen at the next token. (digest_is_the_models)"""
    assert not any(verdicts(ops, CASES, is_spoilt=True))


@pytest.mark.slow
@pytest.mark.parametrize("is_spoilt", [False, True])
def test_ten_thousand_cases(ops: Ops, is_spoilt: bool) -> None:
    """All wrong slots detected, no alarm in as many clean cases. (digest_is_the_models)"""
    assert verdicts(ops, MANY_CASES, is_spoilt) == [not is_spoilt] * MANY_CASES
