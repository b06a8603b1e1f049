"""Level `manager`: the runner plays the model, with shadow memory for its KV.

A manager owns pages and rows: it finds a cached prefix, makes room, caches what was computed and takes
everything back. The runner knows every sequence whole; `extend` says how far it is computed, and the
runner writes those positions where the manager's row says. After every operation each live sequence
is read back through its row: what another sequence overwrote, or a row no longer names, shows at once.

Nothing here judges pages and rows: the invariants do, on the view.
Chapter: spec/03-locks-and-eviction.md, spec/06-decode-and-release.md
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from minisgl_conformance import marks as situations
from minisgl_conformance import targets
from minisgl_conformance.adapters.managers import OracleManager
from minisgl_conformance.runner import Runner
from minisgl_conformance.targets import MakeTarget
from minisgl_spec import contracts, invariants
from minisgl_spec.errors import ContractError, Violation
from minisgl_spec.shadow import ShadowMemory
from minisgl_spec.trace import Json
from minisgl_spec.views import EngineView

Tokens = tuple[int, ...]
SKIPPED_NOT_CLAIMED = "not_claimed"


@dataclass
class Sequence:
    """A live sequence: its tokens, the number of each prefix, and where they are."""

    uid: int
    ids: Tokens
    prefixes: list[int]
    cached_len: int
    written_len: int
    committed_len: int
    slots: Tokens = ()


class ManagerRunner(Runner):
    """One program of start, extend, commit, finish and abort."""

    level = targets.MANAGER
    view_type = EngineView

    def __init__(
        self,
        make_target: MakeTarget,
        config: Mapping[str, Any],
        judges: Collection[str] = invariants.JUDGES,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(make_target, config, judges, origin)
        self.page_size: int = config["page_size"]
        self.num_slots: int = config["num_pages"] * self.page_size
        self.shadow = ShadowMemory()
        self.live: dict[int, Sequence] = {}
        self.oracle = OracleManager(targets.target_config(self.config)) if self.is_exact else None
        self.refuses = targets.claims(self.target, targets.REFUSALS)
        self.start()

    # -- operations --------------------------------------------------------------------------

    def _run(self, op: Json) -> Json:
        operations = {
            "start": self._start,
            "extend": self._extend,
            "commit": self._change,
            "finish": self._change,
            "abort": self._change,
        }
        if op["op"] not in operations:
            raise ContractError("apply", f"an operation of {tuple(operations)}", {"op": repr(op["op"])})
        if self._is_mistake(op) and not self.refuses:
            return {"event": op["op"], "uid": op["uid"], "skipped": SKIPPED_NOT_CLAIMED}
        return operations[op["op"]](op)

    def _is_mistake(self, op: Json) -> bool:
        """Say whether the operation's contract forbids it."""
        sequence = self.live.get(op["uid"])
        if op["op"] == "start":
            pages = -(-len(op["ids"]) // self.page_size)
            too_long = len(op["ids"]) > self.config["max_seq_len"] or pages > self.config["num_pages"]
            return sequence is not None or not op["ids"] or too_long
        if op["op"] == "extend" and sequence is not None:
            return not 1 <= op["num_tokens"] <= len(sequence.ids) - sequence.written_len
        return sequence is None

    def _start(self, op: Json) -> Json:
        uid, ids = op["uid"], tuple(op["ids"])
        cached_len, need = self._attempt("start", self.target.start, uid, ids)
        if need is not None or self._is_mistake(op):
            return self._refusal(op, need)
        if self.oracle is not None:
            self._compare(f"start of {uid}", cached_len, self.oracle.start(uid, ids))
        if cached_len is None:
            if len(self.live) == 0:
                fact = f"start of sequence {uid} was put off though no other is live"
                self._found.append(Violation("requests_finish", fact))
            return self._event(op, cached_len=None)
        if not 0 <= cached_len < len(ids):
            fact = f"start found {cached_len} of {len(ids)} tokens; one at least is left to compute"
            self._found.append(Violation("lengths_ordered", fact))
        prefixes, prefix = [], self.shadow.EMPTY
        for token in ids:
            prefix = self.shadow.extend(prefix, token)
            prefixes.append(prefix)
        self.live[uid] = Sequence(uid, ids, prefixes, cached_len, cached_len, cached_len)
        return self._event(op, cached_len=cached_len)

    def _extend(self, op: Json) -> Json:
        uid, count = op["uid"], op["num_tokens"]
        has_room, need = self._attempt("extend", self.target.extend, uid, count)
        if need is not None or self._is_mistake(op):
            return self._refusal(op, need)
        if self.oracle is not None:
            self._compare(f"extend of {uid}", has_room, self.oracle.extend(uid, count))
        sequence = self.live[uid]
        if not has_room:
            if len(self.live) == 1:
                end = sequence.written_len + count
                fact = f"extend of sequence {uid} to {end} was put off though no other is live"
                self._found.append(Violation("requests_finish", fact))
            return self._event(op, has_room=False)
        start, sequence.written_len = sequence.written_len, sequence.written_len + count
        slots = self._slots_of(sequence)
        for position, slot in enumerate(slots[start:], start):
            self.shadow.write(slot, sequence.prefixes[position])
        return self._event(op, has_room=True)

    def _change(self, op: Json) -> Json:
        """Run a commit, or the end of a sequence."""
        name, uid = op["op"], op["uid"]
        _, need = self._attempt(name, getattr(self.target, name), uid)
        if need is not None or self._is_mistake(op):
            return self._refusal(op, need)
        if self.oracle is not None:
            getattr(self.oracle, name)(uid)
        if name == "commit":
            self.live[uid].committed_len = self.live[uid].written_len
        else:
            del self.live[uid]
        return self._event(op)

    # -- judging -----------------------------------------------------------------------------

    def _judge_view(self) -> None:
        for sequence in self.live.values():
            self._read(sequence)
        free_size = self._call("free_size", self.target.free_size)
        if self.events and "free_size" in self.events[-1]:
            self.events[-1]["free_size"] = free_size
        if self.view is not None:
            self._found += self._violations_of(self.view)
            if invariants.CONTENT in self.judges:
                content = invariants.ContentView(self.view.cache, self.view.requests, self.shadow)
                self._found += invariants.violations(content, self.judges)
            if not self.live and invariants.OWNERSHIP in self.judges:
                self._hold(contracts.nothing_left_at_idle, self.view)
            if free_size != len(self.view.free_pages) * self.page_size:
                fact = f"free_size={free_size}; the view lists {len(self.view.free_pages)} free pages"
                self._found.append(Violation("pages_partitioned", fact))
        if self.oracle is not None:
            self._compare("view", self.view, self.oracle.view())

    def _read(self, sequence: Sequence) -> None:
        """Read a sequence back through its row."""
        slots = self._slots_of(sequence)
        if invariants.CONTENT not in self.judges:
            return
        for position, (slot, prefix) in enumerate(zip(slots, sequence.prefixes, strict=False)):
            if self.shadow.read(slot) != prefix:
                found = self.shadow.describe_mismatch(slot, prefix)
                self._hold(contracts.reads_hold_their_prefix, sequence.uid, position, slot, found)

    def _slots_of(self, sequence: Sequence) -> Tokens:
        """Ask for the slots of a sequence: one per position that is written."""
        slots = tuple(self._call("slots", self.target.slots, sequence.uid))
        wrong = [slot for slot in slots if not 0 <= slot < self.num_slots]
        if len(slots) != sequence.written_len or wrong:
            fact = (
                f"request {sequence.uid} has {sequence.written_len} positions in slots {slots}, "
                f"{len(slots)} of them; there are slots 0 to {self.num_slots - 1}"
            )
            self._found.append(Violation("mapped_pages_cover_lengths", fact))
        sequence.slots = slots
        return slots

    def _mark(self, op: Json, event: Json, before: EngineView | None) -> None:
        situations.mark_manager(self, op, event, before)

    # -- events ------------------------------------------------------------------------------

    def _event(self, op: Json, **answer: Any) -> Json:
        return {"event": op["op"], "uid": op["uid"], **answer, "free_size": 0}

    def _refusal(self, op: Json, need: str | None) -> Json:
        """Hold a refusal, or a mistake that was accepted, to the contract, and the state to what it was."""
        is_mistake = self._is_mistake(op)
        self._hold(contracts.mistakes_are_refused, f"{op['op']} of request {op['uid']}", need, is_mistake)
        if need is None:
            return self._event(op)
        self._hold_unchanged()
        return self._event(op, refused=need)
