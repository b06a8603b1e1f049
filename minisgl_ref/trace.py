"""Engine events as `minisgl_spec.trace` tells them: the inner events of the operation under way.

The scheduler records an event where it takes a decision. A recorder is off unless asked for, and
costs one comparison then.

Nothing here decides or checks.
Chapter: spec/README.md
"""

from __future__ import annotations

from minisgl_spec.trace import Json


class Recorder:
    """The inner events since the operation began."""

    __slots__ = ("events", "is_on")

    def __init__(self, is_on: bool = False) -> None:
        self.is_on = is_on
        self.events: list[Json] = []

    def begin(self) -> None:
        """Forget the events of the last operation."""
        if self.is_on:
            self.events = []

    def record(self, do: str, **fields: object) -> None:
        """Add one event, if the recorder is on."""
        if self.is_on:
            self.events.append({"do": do, **fields})
