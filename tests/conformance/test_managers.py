"""What the fuzzer says of managers: the oracle's and ours are clean, and each wrong one is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minisgl_conformance.adapters.managers import OracleManager, OurManager
from minisgl_conformance.fuzz import fuzz
from minisgl_conformance.runner import run_program
from minisgl_conformance.targets import EXACT, REFUSALS, VIEW
from minisgl_spec.trace import Program

CONFIG = {"page_size": 2, "num_pages": 4, "num_rows": 2, "max_seq_len": 8, "cache": "radix"}


class Manager(OracleManager):
    """The oracle's manager as somebody else's."""

    capabilities = frozenset((VIEW, REFUSALS))


class BlindManager(OracleManager):
    """The same, seen through its slots only."""

    capabilities = frozenset((REFUSALS,))


class KeepsItsRow(BlindManager):
    """A commit gives duplicates back and leaves them in the row."""

    def commit(self, uid: int) -> None:
        """Put the old pages back."""
        pages = list(self.held[uid].pages)
        super().commit(uid)
        self.held[uid].pages = pages


class CachesTheUncommitted(Manager):
    """An abort caches positions that nobody said were computed; here they hold something else."""

    def extend(self, uid: int, num_tokens: int) -> bool:
        """Make room one page too low."""
        has_room = super().extend(uid, num_tokens)
        if has_room and len(self.held[uid].pages) > 1:
            self.held[uid].pages = self.held[uid].pages[::-1]
        return has_room


class LeaksRows(Manager):
    """An abort loses the row."""

    def abort(self, uid: int) -> None:
        """Take a row that nobody has."""
        super().abort(uid)
        self.rows.take()


class FindsEverything(BlindManager):
    """The whole sequence is matched, so that nothing is left to compute."""

    def start(self, uid: int, ids: Sequence[int]) -> int | None:
        """Match one token more."""
        found = super().start(uid, ids)
        return None if found is None else found + 1


class NeverHasRoom(BlindManager):
    """Every extension past the first page is put off for ever."""

    def extend(self, uid: int, num_tokens: int) -> bool:
        """Say no."""
        self.check_extend(self.known("extend", uid), num_tokens)
        return num_tokens < self.page_size and super().extend(uid, num_tokens)


WRONG = {
    KeepsItsRow: "steps_complete",
    CachesTheUncommitted: "reads_hold_their_prefix",
    LeaksRows: "rows_partitioned",
    FindsEverything: "lengths_ordered",
    NeverHasRoom: "requests_finish",
}


@pytest.mark.parametrize("driver", ["hypothesis", "swarm"])
@pytest.mark.parametrize("manager", [OracleManager, OurManager, Manager, BlindManager])
def test_a_right_manager_is_left_alone(manager: type[OracleManager], driver: str) -> None:
    """The oracle's and ours, whatever is shown of them. (spec/README.md)"""
    summary = fuzz(manager, "manager", seed=2, examples=30, driver=driver)

    assert summary.findings == []


@pytest.mark.parametrize("manager", WRONG, ids=lambda manager: manager.__name__)
def test_a_wrong_manager_is_found_by_the_rule_it_breaks(manager: type[OracleManager]) -> None:
    """Each mistake is found under the name of the rule, and reduced. (invariants.md)"""
    (found,) = fuzz(manager, "manager", seed=1, examples=300, driver="swarm").findings

    assert found.rule == WRONG[manager]
    assert len(found.program.ops) <= 8


def test_an_abort_caches_what_was_committed_and_nothing_else() -> None:
    """Four positions are committed, two more are not: a match finds four. (06-decode-and-release.md#abort)"""
    ops = [
        {"op": "start", "uid": 0, "ids": [1, 1, 0, 0, 1, 1]},
        {"op": "extend", "uid": 0, "num_tokens": 4},
        {"op": "commit", "uid": 0},
        {"op": "extend", "uid": 0, "num_tokens": 2},
        {"op": "abort", "uid": 0},
        {"op": "start", "uid": 1, "ids": [1, 1, 0, 0, 1, 1, 1]},
    ]
    results = [run_program(make, Program("manager", CONFIG, ops)) for make in (OracleManager, OurManager)]

    assert [result.finding for result in results] == [None, None]
    assert [result.log.events[-1]["cached_len"] for result in results] == [4, 4]


def test_only_an_exact_manager_is_held_to_the_oracles_decisions() -> None:
    """Somebody else's may choose other pages. (spec/README.md)"""
    assert EXACT in OurManager(CONFIG).capabilities
    assert EXACT not in Manager(CONFIG).capabilities
