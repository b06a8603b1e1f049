"""What the claims about the oracle share: small stages, and the mutants of its source.

Prompts use few token values and short lengths; the model counts, so 1 2 3 is continued by 4.
Guide: tests/README.md
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from minisgl_spec.contracts import CachedPrefixes, cached_pairs
from minisgl_spec.errors import Refusal
from minisgl_spec.messages import Sampling
from minisgl_spec.radix_tree import Handle, RadixTree
from minisgl_spec.requests import Config, Submission
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.trace import Json
from minisgl_spec.views import CacheView, HandleView, NodeView, RequestView

VOCAB_SIZE = 100


def count(ids: tuple[int, ...], sampling: Sampling, output_idx: int, uid: int) -> int:
    """The model: the next token is the last one plus one."""
    return (ids[-1] + 1) % VOCAB_SIZE


def tree_with(*prefixes: Sequence[int], page_size: int = 2) -> RadixTree:
    """A tree in which each prefix was inserted with fresh slots; duplicates leave a gap in the numbers."""
    tree, first = RadixTree(page_size), 0
    for ids in prefixes:
        tree.insert_prefix(ids, range(first, first + len(ids)))
        first += len(ids) + -len(ids) % page_size
    return tree


def locked(tree: RadixTree, *ids: int) -> Handle:
    """A locked handle on the longest cached prefix."""
    handle = tree.match_prefix(ids)
    tree.lock(handle)
    return handle


def pairs(tree: RadixTree) -> dict[tuple[int, ...], Any]:
    """Every cached whole-page prefix and the slots of its last page."""
    return cached_pairs(tree.view())


def cached(tree: RadixTree) -> CachedPrefixes:
    """What the contracts compare with: every cached prefix and its slots, and what is locked."""
    model = CachedPrefixes(tree.page_size)
    model.slots = pairs(tree)
    return model


def ref_counts(tree: RadixTree) -> dict[tuple[int, ...], int]:
    """The ref_count of every node but the root, by its key."""
    return {node.key: node.ref_count for node in tree.view().nodes if node.parent is not None}


def scheduler(**config: Any) -> Scheduler:
    """A scheduler with pages of two slots, unless a claim is about others."""
    small = {"page_size": 2, "num_pages": 8, "num_rows": 2, "max_seq_len": 16, "vocab_size": VOCAB_SIZE}
    return Scheduler(Config(**{**small, **config}), count)


def submit(
    engine: Scheduler, uid: int, ids: Sequence[int], max_tokens: int, **options: Any
) -> Refusal | None:
    """Submit a request."""
    return engine.submit(Submission(uid, tuple(ids), max_tokens, **options))


def submitted(engine: Scheduler, *requests: tuple[int, Sequence[int], int]) -> Scheduler:
    """The engine, with (uid, ids, max_tokens) each submitted."""
    for uid, ids, max_tokens in requests:
        assert submit(engine, uid, ids, max_tokens) is None
    return engine


def stepped(engine: Scheduler, num_steps: int = 1) -> Scheduler:
    """The engine, some steps later."""
    for _ in range(num_steps):
        engine.step()
    return engine


def inner(engine: Scheduler, do: str) -> list[Json]:
    """The inner events of one kind of the last operation, without their name."""
    return [{k: v for k, v in event.items() if k != "do"} for event in engine.inner if event["do"] == do]


def request(engine: Scheduler, uid: int) -> RequestView:
    """The view of one request."""
    return next(view for view in engine.view().requests if view.uid == uid)


def lengths(engine: Scheduler, uid: int) -> tuple[int, int, int]:
    """The cached_len, device_len and written_len of a request."""
    view = request(engine, uid)
    return view.cached_len, view.device_len, view.written_len


def outputs(engine: Scheduler, uid: int, num_steps: int = 40) -> list[tuple[int | None, str | None]]:
    """The (token, finish_reason) of every reply of a request in the next steps."""
    replies = [reply for _ in range(num_steps) for reply in engine.step().replies]
    return [(reply.token, reply.finish_reason) for reply in replies if reply.uid == uid]


def mutated(module: ModuleType, old: str, new: str) -> Any:
    """A copy of a module, in memory, with one place of its source changed."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {module.__name__}"
    namespace: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), f"{module.__name__} (mutated)", "exec"), namespace)
    copy = ModuleType(module.__name__)
    copy.__dict__.update(namespace)
    return copy


def node(
    node_id: int,
    parent: int | None,
    key: Sequence[int] = (),
    slots: Sequence[int] = (),
    children: Sequence[tuple[tuple[int, ...], int]] = (),
    ref_count: int = 0,
) -> NodeView:
    """A node of a hand-made view."""
    return NodeView(node_id, parent, tuple(children), tuple(key), tuple(slots), ref_count, 0)


def cache_view(
    *nodes: NodeView, handles: Sequence[HandleView] = (), evictable: int = 0, protected: int = 0
) -> CacheView:
    """A hand-made view of a cache with pages of two slots."""
    return CacheView(2, nodes, tuple(handles), evictable, protected)
