"""Contracts: what each operation promises, and what a whole run promises, one name and one sentence each.

A contract compares what was known before a call, the call, and what it answered. It permits every
right answer, not one: any slots, any victim that no lock protects. `CachedPrefixes` is the model it
compares with: a plain dict from cached prefix to slots.

Like an invariant, a contract yields sentences with the numbers and never raises.
Chapter: spec/invariants.md (generated from the docstrings here)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from minisgl_spec.messages import ABORT, Reply
from minisgl_spec.trace import Json
from minisgl_spec.units import Slot, Token, Tokens, align_down
from minisgl_spec.views import CacheView, EngineView

Prefix = tuple[Token, ...]
_Check = TypeVar("_Check", bound=Callable[..., Iterator[str]])


@dataclass(frozen=True, slots=True)
class Contract:
    """A named promise of an operation or of a whole run."""

    name: str
    sentence: str
    violations: Callable[..., Iterator[str]]


CONTRACTS: dict[str, Contract] = {}


def contract(function: _Check) -> _Check:
    """Register a generator of violations under its own name and its one-sentence docstring."""
    sentence = " ".join((function.__doc__ or "").split())
    CONTRACTS[function.__name__] = Contract(function.__name__, sentence, function)
    return function


class CachedPrefixes:
    """What a cache must hold, as a dict: every cached whole-page prefix and the slots of its last page."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.slots: dict[Prefix, tuple[Slot, ...]] = {}
        self.locked: Counter[Prefix] = Counter()

    def longest(self, ids: Tokens) -> int:
        """Return the length of the longest cached whole-page prefix of `ids`."""
        length = 0
        while length + self.page_size <= len(ids) and tuple(ids[: length + self.page_size]) in self.slots:
            length += self.page_size
        return length

    def slots_of(self, ids: Tokens) -> tuple[Slot, ...]:
        """Return the slots of a prefix, in order of position; what is not cached has none."""
        ends = range(self.page_size, len(ids) + 1, self.page_size)
        return tuple([slot for end in ends for slot in self.slots.get(tuple(ids[:end]), ())])

    def insert(self, ids: Tokens, slots: Sequence[Slot]) -> None:
        """Record an insertion; what is cached already stays as it is."""
        for end in range(self.page_size, align_down(len(ids), self.page_size) + 1, self.page_size):
            self.slots.setdefault(tuple(ids[:end]), tuple(slots[end - self.page_size : end]))

    def remove(self, slots: Collection[Slot]) -> None:
        """Record an eviction of `slots`."""
        gone = set(slots)
        self.slots = {prefix: page for prefix, page in self.slots.items() if not gone.intersection(page)}

    def protected(self) -> set[Slot]:
        """Return the slots that a locked prefix protects."""
        return {slot for prefix, count in self.locked.items() if count for slot in self.slots_of(prefix)}

    def protected_at_most(self) -> int:
        """Return the slots of locked prefixes and of all that is cached behind them."""
        locked = [prefix for prefix, count in self.locked.items() if count]
        behind = {p for p in self.slots if any(p[: len(prefix)] == prefix for prefix in locked)}
        return len(self.protected().union(*(self.slots[prefix] for prefix in behind)))

    def sizes(self) -> tuple[int, int]:
        """Return (evictable_size, protected_size) in slots."""
        protected = len(self.protected())
        return len(self.slots) * self.page_size - protected, protected


# -- operations of a cache ---------------------------------------------------------------------


@contract
def match_is_longest(cached: CachedPrefixes, ids: Tokens, prefix_len: int) -> Iterator[str]:
    """match_prefix returns the longest cached whole-page prefix."""
    longest = cached.longest(ids)
    if prefix_len != longest:
        yield f"match_prefix({tuple(ids)}) found {prefix_len} tokens; {longest} are cached"


@contract
def match_returns_cached_slots(
    cached: CachedPrefixes, ids: Tokens, prefix_len: int, slots: Sequence[Slot]
) -> Iterator[str]:
    """match_prefix returns the slots that were inserted for the prefix, in order of position."""
    covered = min(prefix_len, cached.longest(ids))
    expected = cached.slots_of(tuple(ids[:covered]))
    if len(slots) != prefix_len or tuple(slots[:covered]) != expected:
        yield f"match_prefix({tuple(ids)}) found {prefix_len} tokens in {tuple(slots)}; cached {expected}"


@contract
def match_preserves_contents(before: CacheView, after: CacheView) -> Iterator[str]:
    """match_prefix may split nodes but leaves the cached pairs of prefix and slot as they were."""
    was, now = cached_pairs(before), cached_pairs(after)
    if was != now:
        yield f"cached before {sorted(was.items())}; after {sorted(now.items())}"


@contract
def insert_reports_prefix(
    cached: CachedPrefixes, ids: Tokens, prefix_len: int, handle_len: int | None = None
) -> Iterator[str]:
    """insert_prefix says how many tokens were cached before, and its handle covers all whole pages."""
    # A handle that is not shown is judged by what it protects once it is locked: `sizes_add_up`.
    new_len = align_down(len(ids), cached.page_size)
    longest = cached.longest(ids)
    if (prefix_len, new_len if handle_len is None else handle_len) != (longest, new_len):
        handle = "" if handle_len is None else f", a handle of {handle_len} tokens"
        yield (
            f"insert_prefix({tuple(ids)}) returned prefix_len={prefix_len}{handle}; "
            f"{longest} were cached, {new_len} are whole pages"
        )


@contract
def sizes_add_up(
    cached: CachedPrefixes, evictable_size: int, protected_size: int, is_exact: bool = True
) -> Iterator[str]:
    """evictable_size and protected_size are the cached slots that no locked handle, or one, protects."""
    # With a policy of its own a cache may split late: a lock protects the whole of the node it ends in.
    evictable, protected = cached.sizes()
    most = protected if is_exact else cached.protected_at_most()
    is_split = evictable_size + protected_size == evictable + protected
    if not is_split or not protected <= protected_size <= most:
        yield (
            f"reported evictable_size={evictable_size}, protected_size={protected_size}; "
            f"cached and locked so far {cached.sizes()}"
        )


@contract
def evict_frees_enough(cached: CachedPrefixes, size: int, slots: Sequence[Slot]) -> Iterator[str]:
    """evict(size) returns at least size slots, all from nodes with ref_count 0."""
    known = {slot for page in cached.slots.values() for slot in page}
    protected = sorted(cached.protected().intersection(slots))
    strange = sorted(set(slots) - known)
    if len(slots) < size:
        yield f"evict({size}) returned {len(slots)} slots"
    if len(set(slots)) != len(slots):
        yield f"evict({size}) returned a slot twice: {tuple(slots)}"
    if protected:
        yield f"evict({size}) returned slots {protected}, which a locked handle protects"
    if strange:
        yield f"evict({size}) returned slots {strange}, which were not cached"


@contract
def evict_leaves_first(cached: CachedPrefixes, slots: Sequence[Slot]) -> Iterator[str]:
    """What evict leaves behind is prefix-closed: no page stays cached behind one that is gone."""
    gone = set(slots)
    kept = {prefix for prefix, page in cached.slots.items() if not gone.intersection(page)}
    orphans = sorted(p for p in kept if len(p) > cached.page_size and p[: -cached.page_size] not in kept)
    if orphans:
        yield f"evicting {tuple(slots)} leaves {orphans} behind a prefix that is gone"


@contract
def evict_takes_oldest_leaf(before: CacheView, slots: Sequence[Slot]) -> Iterator[str]:
    """Each evicted leaf is the least recently used evictable leaf at its turn."""
    nodes = {node.node_id: node for node in before.nodes}
    rest = tuple(slots)
    while rest:
        parents = {node.parent for node in nodes.values()}
        leaves = [
            n for n in nodes.values() if n.parent is not None and n.node_id not in parents and not n.ref_count
        ]
        if not leaves:
            yield f"evicted {rest} though no evictable leaf is left"
            return
        oldest = min(leaves, key=lambda leaf: (leaf.last_used, leaf.node_id))
        if rest[: len(oldest.slots)] != oldest.slots:
            yield f"evicted {rest}; the least recently used leaf is node {oldest.node_id} with {oldest.slots}"
            return
        rest = rest[len(oldest.slots) :]
        del nodes[oldest.node_id]


@contract
def mistakes_are_refused(operation: str, refusal: str | None, is_mistake: bool) -> Iterator[str]:
    """A call is refused when its contract forbids it, and only then."""
    if is_mistake and refusal is None:
        yield f"{operation} was accepted; its contract forbids it"
    if not is_mistake and refusal is not None:
        yield f"{operation} was refused ({refusal}); its contract allows it"


@contract
def refusal_changes_nothing(before: object, after: object) -> Iterator[str]:
    """A call that raises ContractError, or refuses a request, leaves the state as it was."""
    if before != after:
        yield f"before the refused call: {before}; after it: {after}"


# -- whole runs of an engine -------------------------------------------------------------------


@contract
def released_once(inner: Sequence[Json]) -> Iterator[str]:
    """The row and pages of a request are given back exactly once."""
    held: set[int] = set()
    for event in inner:
        if event["do"] == "admit":
            if event["uid"] in held:
                yield f"request {event['uid']} was admitted again before its release"
            held.add(event["uid"])
        elif event["do"] == "release":
            if event["uid"] not in held:
                yield f"request {event['uid']} gave back row {event['row']} though it holds nothing"
            held.discard(event["uid"])


@contract
def replied_once(ended: Collection[int], reply: Reply) -> Iterator[str]:
    """Every submitted request gets exactly one terminal reply, and nothing after it."""
    if reply.uid in ended:
        yield f"request {reply.uid} got {reply} after its terminal reply"


@contract
def tokens_are_the_models(
    uid: int, outputs: Sequence[Token], permitted: Sequence[Token], token: Token | None
) -> Iterator[str]:
    """Every token is the one the model generates after the prompt and the outputs so far."""
    if token not in permitted:
        yield f"request {uid} got {token} after outputs {tuple(outputs)}; permitted {tuple(permitted)}"


@contract
def ends_with_its_last_token(
    uid: int, outputs: Sequence[Token], reason: str | None, expected: str | None
) -> Iterator[str]:
    """A request ends with its first stop token or its max_tokens-th token, not before and not after."""
    if reason != expected and reason != ABORT:
        yield f"request {uid} with outputs {tuple(outputs)} has finish_reason={reason}, expected {expected}"


@contract
def digest_is_the_models(
    uid: int, positions: range, codes: Sequence[int], expected: Sequence[int]
) -> Iterator[str]:
    """Every code the digest model writes is the fold of the tokens before it."""
    if tuple(codes) != tuple(expected):
        yield f"request {uid} wrote codes {tuple(codes)} at positions {positions}; expected {tuple(expected)}"


@contract
def reads_hold_their_prefix(uid: int, position: int, slot: Slot, found: str) -> Iterator[str]:
    """Every position a step reads holds exactly the tokens of its request up to there."""
    yield f"request {uid} read position {position} from slot {slot}, which {found}"


@contract
def caching_changes_no_token(uid: int, cached: Sequence[Token], uncached: Sequence[Token]) -> Iterator[str]:
    """With the same sampling a request gets the same tokens with the cache on or off."""
    if tuple(cached) != tuple(uncached):
        yield f"request {uid} got {tuple(cached)} with the cache and {tuple(uncached)} without"


@contract
def caching_changes_no_bit(
    uid: int, position: int, logits: bytes, expected: bytes, setting: str
) -> Iterator[str]:
    """On one backend the logits after a prefix have the same bits for every batch, chunk and cache."""
    if logits != expected:
        tokens = range(len(expected) // 4)
        other = [t for t in tokens if logits[4 * t : 4 * t + 4] != expected[4 * t : 4 * t + 4]]
        yield (
            f"request {uid} has other logits after position {position} with {setting}: {len(other)} of "
            f"{len(tokens)} differ, first those of tokens {tuple(other[:4])}"
        )


@contract
def chunking_changes_no_token(uid: int, chunked: Sequence[Token], whole: Sequence[Token]) -> Iterator[str]:
    """With the same sampling a request gets the same tokens for every prefill budget."""
    if tuple(chunked) != tuple(whole):
        yield f"request {uid} got {tuple(chunked)} in chunks and {tuple(whole)} whole"


@contract
def overlap_changes_no_token(uid: int, overlap: Sequence[Token], normal: Sequence[Token]) -> Iterator[str]:
    """With the same sampling a request gets the same tokens in the normal and the overlap loop."""
    if tuple(overlap) != tuple(normal):
        yield f"request {uid} got {tuple(overlap)} in the overlap loop and {tuple(normal)} in the normal loop"


@contract
def requests_finish(waiting: Collection[int], num_steps: int) -> Iterator[str]:
    """Every accepted request finishes: left alone, the engine comes to rest."""
    if waiting:
        yield f"requests {sorted(waiting)} have not ended after {num_steps} steps without new work"


@contract
def steps_complete(operation: str, error: str) -> Iterator[str]:
    """No sequence of accepted operations stops the engine."""
    yield f"{operation} raised {error}"


@contract
def nothing_left_at_idle(view: EngineView) -> Iterator[str]:
    """An idle engine holds no request, no lock and no row; every page is free or cached."""
    cached = view.cache.evictable_size // view.page_size
    if view.requests or view.in_flight or view.cache.protected_size or view.retired_pages:
        yield (
            f"idle with requests {[r.uid for r in view.requests]}, {len(view.in_flight)} of them in flight, "
            f"protected_size={view.cache.protected_size}, retired pages {view.retired_pages}"
        )
    if len(view.free_pages) + cached != view.num_pages or len(view.free_rows) != view.num_rows:
        yield (
            f"idle with {len(view.free_pages)} free and {cached} cached of {view.num_pages} pages, "
            f"{len(view.free_rows)} free of {view.num_rows} rows"
        )


@contract
def agrees_with_oracle(what: str, found: object, expected: object) -> Iterator[str]:
    """An engine that claims the oracle's policy takes the oracle's decisions, event by event."""
    if found != expected:
        yield f"{what}: {found}; the oracle has {expected}"


def cached_pairs(view: CacheView) -> dict[Prefix, Any]:
    """Return every cached whole-page prefix and the slots of its last page."""
    nodes = {node.node_id: node for node in view.nodes}
    pairs: dict[Prefix, Any] = {}
    for node in view.nodes:
        above: Prefix = ()
        parent = nodes.get(node.parent) if node.parent is not None else None
        for _ in view.nodes:
            if parent is None:
                break
            above = parent.key + above
            parent = nodes.get(parent.parent) if parent.parent is not None else None
        for end in range(view.page_size, len(node.key) + 1, view.page_size):
            pairs[above + node.key[:end]] = node.slots[end - view.page_size : end]
    return pairs
