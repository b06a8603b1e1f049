"""Blame and biography: which operation broke the rule, and what became of the page or row it broke it on.

A judge notices at once what a view shows; what only a read or a token shows may have gone wrong
earlier. Blame follows the evidence back: a wrong read to the operation that changed the row it went
through, a wrong token to the launch of its batch, a request that never ends to the first operation
that moved nothing any more.

The biography of a page or row is read off the views, one line per operation that changed its owner.
Nothing here judges, and nothing is run again.
Chapter: spec/README.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minisgl_spec import draw
from minisgl_spec.units import slots_to_pages
from minisgl_spec.views import CacheView, EngineView, NodeView, RequestView

if TYPE_CHECKING:
    from minisgl_conformance.runner import Finding, Runner

NO_VIEW = "(the target shows no view)"

_WORDS = r"(?P<kind>slots|slot|pages|page|row|node|request)s? [\[(]?(?P<number>\d+)"
_ORDER = ("slot", "page", "row", "node", "request")

READS = {"reads_hold_their_prefix", "slots_hold_their_tokens", "match_returns_cached_slots"}
TOKENS = {"tokens_are_the_models", "digest_is_the_models"}
ENDS = {"requests_finish", "nothing_left_at_idle"}


def explain(runner: Runner, finding: Finding) -> Finding:
    """Return the finding with its blame, the biography of its subject and both drawings."""
    subject = _subject(runner, finding)
    blame_idx, why = _blame(runner, finding, subject)
    views = runner.views
    after = min(blame_idx + 1, len(views) - 1)
    return replace(
        finding,
        blame_idx=blame_idx,
        why=why,
        subject=_name(subject),
        biography=tuple(_biography(runner, subject)),
        before=_draw(views[min(blame_idx, len(views) - 1)]),
        after=_draw(views[after]),
    )


def numbers_in(fact: str) -> dict[str, int]:
    """Return the first slot, page, row, node and request that a fact names."""
    found: dict[str, int] = {}
    for match in re.finditer(_WORDS, fact):
        found.setdefault(match["kind"].removesuffix("s"), int(match["number"]))
    return found


def _subject(runner: Runner, finding: Finding) -> tuple[str, int] | None:
    """Return the page, row or request that the finding is about: the most exact thing that it names."""
    for violation in finding.violations:
        found = numbers_in(violation.fact)
        for kind in _ORDER:
            if kind not in found:
                continue
            number = found[kind]
            if kind == "slot":
                return "page", number // int(runner.config["page_size"])
            if kind == "node":
                page = _first_page(runner, number)
                if page is None:
                    continue
                return "page", page
            if kind == "request":
                row = _last_row(runner, number)
                return ("request", number) if row is None else ("row", row)
            return kind, number
    return None


def _name(subject: tuple[str, int] | None) -> str:
    return "" if subject is None else f"{subject[0]} {subject[1]}"


# -- blame -------------------------------------------------------------------------------------


def _blame(runner: Runner, finding: Finding, subject: tuple[str, int] | None) -> tuple[int, str]:
    """Return the operation that broke the rule, and the evidence if it is not the one that noticed."""
    noticed = len(runner.ops) - 1
    numbers = numbers_in(finding.fact)
    if finding.rule in READS and "slot" in numbers:
        return _blame_read(runner, noticed, numbers["slot"], numbers.get("request"))
    if finding.rule in TOKENS:
        return _blame_launch(runner, noticed)
    if finding.rule in ENDS:
        return _blame_standstill(runner, noticed)
    return noticed, ""


def _blame_standstill(runner: Runner, noticed: int) -> tuple[int, str]:
    """Blame the first operation of those at the end that moved nothing any more."""
    last = timeless(runner.views[-1])
    stuck = noticed
    while last is not None and stuck > 0 and timeless(runner.views[stuck]) == last:
        stuck -= 1
    stuck = min(stuck + 1, noticed)
    return (stuck, "nothing moves from here on") if stuck < noticed else (noticed, "")


def timeless(view: Any) -> Any:
    """Return a view without the ticks of its nodes: an order that nobody used yet is no difference."""
    if isinstance(view, EngineView):
        return view._replace(cache=timeless(view.cache))
    if isinstance(view, CacheView):
        return view._replace(nodes=tuple([node._replace(last_used=0) for node in view.nodes]))
    return view


def _blame_read(runner: Runner, noticed: int, slot: int, uid: int | None) -> tuple[int, str]:
    """Blame the change of the row that no longer names the slot which the device still reads."""
    mapped = _last_mapping(runner, slot, uid)
    if mapped is not None and mapped < noticed:
        return mapped, f"the row of request {uid} was changed here; the device still reads slot {slot}"
    return noticed, ""


def _last_mapping(runner: Runner, slot: int, uid: int | None) -> int | None:
    """Return when a request's row stopped naming a slot, by the host's view; None if it still does."""
    last = None
    named = False
    for idx, view in enumerate(runner.views[1:]):
        request = _request(view, uid)
        names = request is not None and slot in request.row_slots
        if named and not names:
            last = idx
        named = names
    return None if named else last


def _blame_launch(runner: Runner, noticed: int) -> tuple[int, str]:
    """Blame the launch of the batch that was processed or run when the wrong token was noticed."""
    batches = [event["batch"] for event in _inner(runner, noticed) if event["do"] == "process"]
    batches += [execution.batch for idx, execution in getattr(runner, "executions", ()) if idx == noticed]
    for idx in range(noticed):
        for event in _inner(runner, idx):
            if event["do"] == "launch" and event["batch"] in batches[:1]:
                return idx, f"batch {event['batch']}, which computed it, was launched here"
    return noticed, ""


# -- biography ---------------------------------------------------------------------------------


def _biography(runner: Runner, subject: tuple[str, int] | None) -> Iterator[str]:
    """Yield what each operation did to the subject."""
    if subject is None:
        return
    for idx, text in _changes(runner, subject):
        yield f"step {idx}: {text}"


def _changes(runner: Runner, subject: tuple[str, int]) -> list[tuple[int, str]]:
    """Return the operations that changed the owner of the subject, and how."""
    kind, number = subject
    changes: list[tuple[int, str]] = []
    owners = {"page": _page_owners, "row": _row_owners, "request": _request_state}[kind]
    page_size = int(runner.config["page_size"])
    written = _writers(runner, number, page_size) if kind == "page" else {}
    for idx in range(len(runner.views) - 1):
        was, now = owners(runner.views[idx], number), owners(runner.views[idx + 1], number)
        words = [*_told(runner, idx, subject), *written.get(idx, [])]
        words += [_change(was, now)] if was != now else []
        if words:
            changes.append((idx, "; ".join(words)))
    return changes


def _change(was: str, now: str) -> str:
    """Say what an operation did to a page, row or request, and who owns it now."""
    verb = ""
    if was.startswith("cached") and now.startswith("cached"):
        verb = _lock_verb(was, now)
    elif was.startswith("cached") and now in ("free", "not cached"):
        verb = "evicted"
    elif now == "free":
        verb = "given back"
    elif was == "free":
        verb = "taken"
    return f"{verb}, now {now or 'nobody has it'}" if verb else now or "nobody has it"


def _lock_verb(was: str, now: str) -> str:
    counts = [int(text.rpartition("=")[2].split()[0]) if "=" in text else 0 for text in (was, now)]
    return "locked" if counts[1] > counts[0] else "unlocked" if counts[1] < counts[0] else "split"


def _page_owners(view: Any, page: int) -> str:
    """Say who owns a page, by a view."""
    cache = view.cache if isinstance(view, EngineView) else view
    if not isinstance(cache, CacheView):
        return ""
    size = cache.page_size
    owners = [
        f"cached by node {node.node_id}, ref_count={node.ref_count}"
        for node in cache.nodes
        if page in slots_to_pages(node.slots, size)
    ]
    if isinstance(view, EngineView):
        owners += ["free"] * view.free_pages.count(page) + ["retired"] * view.retired_pages.count(page)
        owners += [f"private to request {r.uid}" for r in view.requests if page in _private(r, size)]
        return " and ".join(owners)
    return " and ".join(owners) or "not cached"


def _private(request: RequestView, page_size: int) -> tuple[int, ...]:
    covered = request.handle.prefix_len if request.handle is not None else 0
    return slots_to_pages(request.row_slots[covered - covered % page_size :], page_size)


def _row_owners(view: Any, row: int) -> str:
    if not isinstance(view, EngineView):
        return ""
    owners = ["free"] * view.free_rows.count(row)
    owners += [
        f"request {r.uid} ({r.phase}), cached_len={r.cached_len}" for r in view.requests if r.row == row
    ]
    owners += [f"batch {e.batch} in flight" for e in view.in_flight if e.row == row]
    return " and ".join(owners)


def _request_state(view: Any, uid: int) -> str:
    request = _request(view, uid)
    if request is None:
        return "gone"
    return f"{request.phase}, cached_len={request.cached_len} of {request.max_device_len}"


def _request(view: Any, uid: int | None) -> RequestView | None:
    requests = view.requests if isinstance(view, EngineView) else ()
    return next((request for request in requests if request.uid == uid), None)


def _last_row(runner: Runner, uid: int) -> int | None:
    """Return the row that a request had last."""
    for view in reversed(runner.views):
        request = _request(view, uid)
        if request is not None and request.row is not None:
            return request.row
    return None


def _first_page(runner: Runner, node_id: int) -> int | None:
    """Return the first page of a node, by the last view that has it."""
    for view in reversed(runner.views):
        cache = view.cache if isinstance(view, EngineView) else view
        nodes: tuple[NodeView, ...] = cache.nodes if isinstance(cache, CacheView) else ()
        for node in nodes:
            if node.node_id == node_id and node.slots:
                return node.slots[0] // cache.page_size
    return None


# -- evidence ----------------------------------------------------------------------------------


def _told(runner: Runner, idx: int, subject: tuple[str, int]) -> Iterator[str]:
    """Yield what the inner events of an operation say of a page, also what the next of them undid."""
    kind, number = subject
    for event in _inner(runner, idx) if kind == "page" else ():
        if event["do"] == "take" and number in event["pages"]:
            yield f"taken by request {event['uid']}"
        elif event["do"] == "evict" and number in event["pages"]:
            yield "evicted"
        elif event["do"] == "insert" and number in event["duplicates"]:
            yield f"request {event['uid']} finds it is a duplicate"
        elif event["do"] == "release" and number in event["given_up"]:
            yield f"given up by request {event['uid']}"


def _inner(runner: Runner, idx: int) -> list[dict[str, Any]]:
    inner: list[dict[str, Any]] = runner.events[idx].get("inner", []) if idx < len(runner.events) else []
    return inner


def _writers(runner: Runner, page: int, page_size: int) -> dict[int, list[str]]:
    """Return who wrote to a page, by operation."""
    found: dict[int, list[str]] = {}
    for idx, execution in getattr(runner, "executions", ()):
        for request in execution.requests:
            if page in {slot // page_size for slot in request.slots[request.cached_len :]}:
                found.setdefault(idx, []).append(
                    f"written by request {request.uid} in batch {execution.batch}"
                )
    return found


def _draw(view: Any) -> str:
    return draw.draw(view) if view is not None else NO_VIEW
