"""The boundary: what a target answers becomes plain values, or is refused by its method, value and type.

An engine may answer with numpy integers, arrays, lists or tensors where the protocol says whole
numbers and tuples of them; what the judges compare and the log writes is plain. An answer that is
none of these is a mistake of the adapter, not a finding.

Nothing here judges what was answered.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from operator import index
from typing import Any, NoReturn, TypeVar, cast

from minisgl_spec.errors import ContractError, Refusal
from minisgl_spec.messages import Reply
from minisgl_spec.trace import Json

T = TypeVar("T")

_PLAIN = (int, str, bool, float, bytes, type(None))

INNER: dict[str, tuple[str, ...]] = {
    "admit": ("uid", "row", "cached_len", "pages"),
    "refuse": ("uid", "why", "need", "available"),
    "evict": ("pages",),
    "take": ("uid", "pages"),
    "launch": ("batch", "phase", "requests"),
    "process": ("batch",),
    "insert": ("uid", "insert_len", "prefix_len", "duplicates"),
    "release": ("uid", "row", "insert_len", "prefix_len", "given_up"),
    "reply": ("uid", "token", "finish_reason", "cached_len"),
}
"""The inner events, and what each has to say."""


def whole(method: str, value: Any) -> int:
    """Return a whole number; 2.0 is none.

    Raises: ContractError naming the method, the value and its type.
    """
    try:
        return index(value)
    except (TypeError, ValueError, RuntimeError):
        _refuse(method, "a whole number", value)


def wholes(method: str, value: Any) -> tuple[int, ...]:
    """Return a sequence of whole numbers."""
    is_plain = type(value) is tuple  # asked first, for it costs nothing
    if not is_plain and (isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)):
        _refuse(method, "a sequence of whole numbers", value)
    try:
        return tuple([index(item) for item in value])
    except (TypeError, ValueError, RuntimeError):
        _refuse(method, "a sequence of whole numbers", value)


def parts(method: str, value: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the parts of an answer that is a tuple of so many."""
    is_plain = type(value) is tuple
    if not is_plain and (isinstance(value, str | bytes) or not isinstance(value, Iterable)):
        _refuse(method, f"({', '.join(names)})", value)
    found = tuple(value)
    if len(found) != len(names):
        _refuse(method, f"({', '.join(names)})", value)
    return found


def refusal(method: str, value: Any) -> Refusal | None:
    """Return a refusal with a plain value and limit, or None."""
    if value is None:
        return None
    if not isinstance(value, Refusal):
        _refuse(method, "None or a Refusal", value)
    return Refusal(str(value.reason), _plain_or_text(value.value), _plain_or_text(value.limit))


def replies(method: str, value: Any) -> tuple[Reply, ...]:
    """Return replies whose numbers are plain."""
    if not isinstance(value, Iterable):
        _refuse(method, "a sequence of Reply", value)
    return tuple([_reply(method, reply) for reply in value])


def _reply(method: str, reply: Any) -> Reply:
    if not isinstance(reply, Reply):
        _refuse(method, "a sequence of Reply", reply)
    token = None if reply.token is None else whole(f"{method}, token of a reply", reply.token)
    reason = reply.finish_reason
    if reason is not None and not isinstance(reason, str):
        _refuse(f"{method}, finish_reason of a reply", "a string or None", reason)
    uid, cached_len = (whole(f"{method}, {n} of a reply", getattr(reply, n)) for n in ("uid", "cached_len"))
    return Reply(uid, token, None if reason is None else str(reason), cached_len)


def picture(method: str, value: Any, kind: type[T]) -> T:
    """Return a view of the kind asked for, with plain numbers and tuples in it."""
    if not isinstance(value, kind):
        _refuse(method, f"a {kind.__name__}", value)
    return cast(T, _plain(method, value, tuple))


def pictures(method: str, value: Any, kind: type[T]) -> tuple[T, ...]:
    """Return a sequence of such views."""
    if not isinstance(value, Iterable):
        _refuse(method, f"a sequence of {kind.__name__}", value)
    return tuple([picture(method, item, kind) for item in value])


def events(method: str, value: Any) -> list[Json]:
    """Return inner events as a log has them."""
    if not isinstance(value, Iterable):
        _refuse(method, "a sequence of inner events", value)
    found = list(value)
    for event in found:
        do = event.get("do") if isinstance(event, Mapping) else None
        if do not in INNER or any(name not in event for name in INNER[do]):
            _refuse(method, f"inner events of {tuple(INNER)} with all their fields", event)
    return [cast(Json, _plain(method, event, list)) for event in found]


def _plain(method: str, value: Any, many: Callable[[list[Any]], Any]) -> Any:
    """Return a value without foreign numbers and arrays in it; the same object if it has none."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (tuple, list):
        items = value if {*map(type, value)} <= {int} else [_plain(method, item, many) for item in value]
        is_same = kind is many and all(map(_is, items, value))
        return value if is_same else many(list(items))
    if is_dataclass(kind) or (many is tuple and hasattr(kind, "_fields")):
        named = {name: getattr(value, name) for name in field_names(kind)}
        made = {name: _plain(f"{method}, {name}", item, many) for name, item in named.items()}
        return value if all(map(_is, named.values(), made.values())) else kind(**made)
    if isinstance(value, Mapping):
        return {str(name): _plain(f"{method}, {name}", item, many) for name, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(method, value.tolist(), many)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return many([_plain(method, item, many) for item in value])
    return str(value) if isinstance(value, str) else whole(method, value)


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a named tuple or a dataclass; of anything else, none."""
    return tuple(getattr(kind, "_fields", getattr(kind, "__dataclass_fields__", ())))


def _is(one: object, other: object) -> bool:
    return one is other


def _plain_or_text(value: Any) -> Any:
    try:
        return _plain("refusal", value, list)
    except ContractError:
        return str(value)


def _refuse(method: str, need: str, value: Any) -> NoReturn:
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:76]} ..."
    raise ContractError(method, need, {"value": shown, "type": type(value).__name__})
