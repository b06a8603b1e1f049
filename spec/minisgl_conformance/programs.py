"""Programs: how a few small numbers become configurations, prompts and operations near the edges.

Prompts use two or three token values, and most are made from earlier ones: repeated, extended, cut
or continued with their outputs, so that shared prefixes are the rule. Lengths sit at whole pages
and one token beyond. Pools are so small that memory is always short.

Strategies draw small integers only; everything else is arithmetic here, so that a draw is cheap and
shrinks to the plainest program. Nothing here runs a program.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from minisgl_conformance.targets import COMPARE
from minisgl_conformance.variants import ALL_SHARE, VARIANTS
from minisgl_spec.errors import ContractError
from minisgl_spec.trace import Json

Tokens = tuple[int, ...]
PromptDraw = tuple[int, int, int, int]
"""How it is made, from which earlier prompt, its length or where that one is cut, its tokens."""

PAGE_SIZES = (1, 2, 3, 4, 16)
MAX_SEQ_LENS = (32, 32, 32, 20, 27, 33, 40)  # 3 and 16 divide none of most of them
TOKEN_BUDGETS = (1, 2, 3, 5, 8, 16, 64)
MAX_TOKENS = (1, 2, 3, 4, 5, 6, 9, 64)
VOCAB_SIZES = {"digest": 6, "tiny-llama": 64}
EOS_TOKEN = 4
"""The EOS token of the configurations that have one: prompts do not use it, models do generate it."""

FRESH, REPEATED, EXTENDED, BRANCHED, CUT, CONTINUED = range(6)
"""How a prompt is made: new; an earlier one whole, with more, with another end, cut; a conversation."""

NAIVE_SHARE = 10
"""One program in so many runs without a cache."""

NUM_OPTIONS = 16

PROMPTS = st.tuples(
    st.integers(0, 5),  # how it is made
    st.integers(0, 7),  # from which earlier prompt, the last one being 0
    st.integers(0, 35),  # its length, or where it is cut
    st.integers(0, 63),  # its tokens
)
"""A prompt as four small numbers; `make_prompt` turns them into tokens."""

PROGRESS = st.lists(st.integers(0, 5), max_size=8)
"""How far the streams come at each decision point of a step."""


def cache_configs(fixed: Mapping[str, Any]) -> st.SearchStrategy[Json]:
    """Return a strategy of configurations of a cache; what is fixed stays as it is."""

    def build(page_size: int, num_pages: int, caching: int) -> Json:
        return make_cache_config(page_size, num_pages, caching, fixed)

    return st.builds(build, st.sampled_from(PAGE_SIZES), st.integers(3, 12), st.integers(0, NAIVE_SHARE - 1))


def make_cache_config(page_size: int, num_pages: int, caching: int, fixed: Mapping[str, Any]) -> Json:
    """Turn drawn numbers into a configuration of a cache."""
    return {"page_size": page_size, "num_pages": num_pages, "cache": caching_of(caching), **fixed}


def manager_configs(fixed: Mapping[str, Any]) -> st.SearchStrategy[Json]:
    """Return a strategy of configurations of a manager; what is fixed stays as it is."""

    def build(sizes: tuple[int, int, int, int], caching: int) -> Json:
        return make_manager_config(sizes, caching, fixed)

    return st.builds(
        build,
        st.tuples(
            st.sampled_from(PAGE_SIZES), st.integers(3, 12), st.integers(1, 4), st.sampled_from(MAX_SEQ_LENS)
        ),
        st.integers(0, NAIVE_SHARE - 1),
    )


def make_manager_config(sizes: tuple[int, int, int, int], caching: int, fixed: Mapping[str, Any]) -> Json:
    """Turn drawn numbers into a configuration of a manager."""
    names = ("page_size", "num_pages", "num_rows", "max_seq_len")
    return {**dict(zip(names, sizes, strict=True)), "cache": caching_of(caching), **fixed}


def caching_of(caching: int) -> str:
    """Turn a number below NAIVE_SHARE into a kind of cache."""
    return "naive" if caching == NAIVE_SHARE - 1 else "radix"


def engine_configs(fixed: Mapping[str, Any], streams: Sequence[str]) -> st.SearchStrategy[Json]:
    """Return a strategy of configurations of an engine; a variant never changes what is fixed."""

    def build(
        sizes: tuple[int, int, int, int, int], caching: int, switches: tuple[bool, bool, int], compare: str
    ) -> Json:
        has_eos, overlap, stream = switches
        return make_engine_config(
            sizes, caching, has_eos, overlap, streams[stream % len(streams)], compare, fixed
        )

    return st.builds(
        build,
        st.tuples(
            st.sampled_from(PAGE_SIZES),
            st.integers(3, 12),
            st.integers(1, 4),
            st.sampled_from(MAX_SEQ_LENS),
            st.sampled_from(TOKEN_BUDGETS),
        ),
        st.integers(0, NAIVE_SHARE - 1),
        st.tuples(st.booleans(), st.booleans(), st.integers(0, 1)),
        st.sampled_from(compares(fixed)),
    )


def make_engine_config(
    sizes: tuple[int, int, int, int, int],
    caching: int,
    has_eos: bool,
    overlap: bool,
    streams: str,
    compare: str,
    fixed: Mapping[str, Any],
) -> Json:
    """Turn drawn values into a configuration of an engine.

    sizes:   page_size, num_pages, num_rows, max_seq_len, token_budget.
    compare: the variants that the tokens are compared with, by commas, or "".
    """
    model = fixed.get("model", "digest")
    vocab_size = fixed.get("vocab_size", VOCAB_SIZES.get(model, 6))
    names = ("page_size", "num_pages", "num_rows", "max_seq_len", "token_budget")
    config = {
        **dict(zip(names, sizes, strict=True)),
        "cache": caching_of(caching),
        "overlap": overlap,
        "vocab_size": vocab_size,
        "eos_ids": [EOS_TOKEN] if has_eos and vocab_size > EOS_TOKEN else [],
        "model": model,
        "streams": streams,
        **fixed,
    }
    return {COMPARE: compare, **config} if compare else config


def free_variants(fixed: Mapping[str, Any]) -> list[str]:
    """Return the variants that change nothing which is fixed."""
    return [name for name in VARIANTS if name not in fixed] or [""]


def compares(fixed: Mapping[str, Any]) -> list[str]:
    """Return what to draw a `compare` from: one variant mostly, one time in ALL_SHARE all of them."""
    free = free_variants(fixed)
    return [*(free * ALL_SHARE)[: ALL_SHARE - 1], all_variants(fixed)]


def all_variants(fixed: Mapping[str, Any]) -> str:
    """Return the `compare` that names every variant which changes nothing that is fixed."""
    return ",".join(free_variants(fixed))


def check_fixed(level: str, fixed: Mapping[str, Any]) -> None:
    """Refuse a fixed key that no configuration of the level has.

    Raises: ContractError naming the key.
    """
    known = {
        "cache": ("page_size", "num_pages", "cache"),
        "manager": ("page_size", "num_pages", "num_rows", "max_seq_len", "cache"),
        "engine": (
            "page_size",
            "num_pages",
            "num_rows",
            "max_seq_len",
            "token_budget",
            "cache",
            "overlap",
            "vocab_size",
            "eos_ids",
            "model",
            "streams",
            COMPARE,
        ),
    }
    if level not in known:
        raise ContractError("run_conformance", f"a level of {tuple(known)}", {"level": repr(level)})
    for name in fixed:
        if name not in known[level]:
            raise ContractError("run_conformance", f"a config key of {known[level]}", {"key": repr(name)})


def make_prompt(draw: PromptDraw, earlier: Sequence[Tokens], page_size: int, limit: int) -> Tokens:
    """Turn four small numbers into a prompt of at most `limit` tokens.

    earlier: prompts (and conversations) so far; made from one of them unless there is none.
    """
    how, which, size, bits = draw
    if how == FRESH or not earlier:
        return make_tokens(bits, make_length(size, page_size, limit), page_size)
    old = earlier[-1 - which % len(earlier)]
    tail = make_tokens(bits, 1 + size % (page_size + 2), page_size)
    if how == REPEATED:
        made = old
    elif how in (EXTENDED, CONTINUED):
        made = (*old, *tail)
    elif how == CUT:
        made = old[: 1 + size % max(1, len(old))]
    else:
        made = (*old[: size % (len(old) + 1)], *tail)
    return made[:limit]


def make_length(size: int, page_size: int, limit: int) -> int:
    """Return a length that is whole pages, one token more, or anything, up to `limit`."""
    pages = 1 + size // 3 % max(1, limit // page_size)
    length = (1 + size // 3 * 2, pages * page_size, pages * page_size + 1)[size % 3]
    return 1 + (length - 1) % max(1, limit)


def make_tokens(bits: int, length: int, page_size: int) -> Tokens:
    """Return tokens of two values, and a third: runs of a page at first, so that pages repeat by luck."""
    if bits % 4 == 3:
        return tuple((bits >> idx % 6) % 3 for idx in range(length))
    return tuple(bits >> (idx // page_size) % 6 & 1 for idx in range(length))


SAMPLING = ("temperature", "top_k", "top_p", "seed")
"""What a submission says of sampling; greedy if it says nothing."""


def make_options(option: int, vocab_size: int) -> Json:
    """Return what else a submission says: mostly nothing, that is greedy to the end."""
    options: tuple[Json, ...] = (
        {"temperature": 0.7, "seed": 1},
        {"temperature": 1.5, "top_k": 2, "seed": 2},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.8, "seed": 7},
        {"stop_ids": [1, 3, EOS_TOKEN]},
        {"ignore_eos": True},
        {"ignore_eos": True, "stop_ids": [min(5, vocab_size - 1)]},
    )
    first = NUM_OPTIONS - len(options)
    return dict(options[option - first]) if option >= first else {}


def make_bad_submission(kind: int, op: Json, config: Mapping[str, Any]) -> Json:
    """Turn a submission into one that has to be refused (or, for its size, may have to).

    1.0 is no whole number, though JSON takes it for an integer.
    """
    changes: tuple[Json, ...] = (
        {"ids": []},
        {"ids": [*op["ids"], config["vocab_size"]]},
        {"ids": [*op["ids"], config["vocab_size"] + 3]},
        {"ids": [-1, *op["ids"]]},
        {"ids": [*op["ids"], 1.0]},
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"max_tokens": 2.0},
        {"temperature": "nan"},
        {"temperature": -0.5},
        {"temperature": "inf"},
        {"top_k": -1},
        {"top_k": 1.0},
        {"seed": 1.0},
        {"stop_ids": [1.0]},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": -0.5},
        {"top_p": "nan"},
        {"ids": [0] * config["max_seq_len"]},
        {"ids": [1] * (config["max_seq_len"] + 1)},
        {"ids": [0] * (config["max_seq_len"] - 1), "max_tokens": 64},
        {"ids": [1] * min(config["max_seq_len"] - 1, config["num_pages"] * config["page_size"] + 1)},
    )
    return {**op, **changes[kind % len(changes)]}


NUM_BAD_SUBMISSIONS = 23
