"""Streams: the one place that knows how work reaches the device.

Work on one stream runs in order; two streams are ordered only by events. The scheduler's stream
writes page table and token pool, the engine's stream runs batches. Three kinds: inline (work runs
at once), CUDA, and simulated, where the program decides at every step how far each stream has
come, within what the order allows, and a host wait runs exactly what it needs.

Nothing here knows what the work does.
Chapter: spec/07-overlap.md#streams
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    import torch

Work = Callable[[], None]

SCHEDULER, ENGINE = 0, 1
"""The two streams: table writes; batches."""

NOTHING, EVERYTHING = 0, 1
"""Decisions of a progress list; d >= 2 runs 1 + (d - 2) // 2 items of stream (d - 2) % 2."""


class Streams(ABC):
    """Two streams of a device, the host's ways to order them, and to wait."""

    @abstractmethod
    def enqueue(self, stream: int, work: Work) -> None:
        """Hand work to a stream; it runs after everything handed to that stream before."""

    @abstractmethod
    def record(self, stream: int) -> Any:
        """Return an event that happens when everything handed to the stream so far has run."""

    @abstractmethod
    def wait(self, stream: int, event: Any) -> None:
        """Let everything handed to the stream from now on run after the event."""

    @abstractmethod
    def synchronize(self, event: Any) -> None:
        """Let the host wait for an event."""

    @abstractmethod
    def plan(self, progress: Sequence[int]) -> None:
        """Say how far the streams come during the next operation; only simulated streams listen."""


class InlineStreams(Streams):
    """Work runs when it is handed over."""

    def enqueue(self, stream: int, work: Work) -> None:
        """Run the work."""
        work()

    def record(self, stream: int) -> None:
        """Nothing is outstanding, so the event has happened."""

    def wait(self, stream: int, event: None) -> None:
        """The event has happened."""

    def synchronize(self, event: None) -> None:
        """The event has happened."""

    def plan(self, progress: Sequence[int]) -> None:
        """Nothing is ever late."""


class SimulatedStreams(Streams):
    """A deterministic device that runs work when the program says so.

    An event is (stream, count): it happens when `count` items of the stream have run.
    Every call of `enqueue` is a decision point that consumes one number of the plan; when the plan
    is used up, nothing more runs than a host wait needs: work runs as late as it can.
    """

    def __init__(self) -> None:
        self._queues: tuple[deque[Work], deque[Work]] = (deque(), deque())
        self._handed = [0, 0]
        self._done = [0, 0]
        self._waits: tuple[dict[int, list[tuple[int, int]]], ...] = ({}, {})
        self._plan: deque[int] = deque()
        self.num_late = 0  # decision points after which work was left to run

    def plan(self, progress: Sequence[int]) -> None:
        """Replace the plan; the first decision is taken now."""
        self._plan = deque(progress)
        self._decide()

    def enqueue(self, stream: int, work: Work) -> None:
        """Queue the work, then take one decision."""
        self._queues[stream].append(work)
        self._handed[stream] += 1
        self._decide()

    def record(self, stream: int) -> tuple[int, int]:
        """Return the event of everything handed to the stream so far."""
        return stream, self._handed[stream]

    def wait(self, stream: int, event: tuple[int, int]) -> None:
        """Order the stream's next item after the event."""
        self._waits[stream].setdefault(self._handed[stream], []).append(event)

    def synchronize(self, event: tuple[int, int]) -> None:
        """Run what the event needs, and nothing else."""
        stream, count = event
        while self._done[stream] < count:
            for earlier in self._waits[stream].get(self._done[stream], ()):
                self.synchronize(earlier)
            self._run_next(stream)

    def _decide(self) -> None:
        decision = self._plan.popleft() if self._plan else NOTHING
        if decision == EVERYTHING:
            while self._run_if_ready(SCHEDULER) or self._run_if_ready(ENGINE):
                pass
        elif decision != NOTHING:
            for _ in range(1 + (decision - 2) // 2):
                self._run_if_ready((decision - 2) % 2)
        self.num_late += bool(self._queues[SCHEDULER] or self._queues[ENGINE])

    def _run_if_ready(self, stream: int) -> bool:
        """Run the stream's next item if nothing it waits for is outstanding; say whether it ran."""
        waits = self._waits[stream].get(self._done[stream], ())
        if not self._queues[stream] or any(self._done[other] < count for other, count in waits):
            return False
        self._run_next(stream)
        return True

    def _run_next(self, stream: int) -> None:
        work = self._queues[stream].popleft()
        self._waits[stream].pop(self._done[stream], None)
        self._done[stream] += 1
        work()


class CudaStreams(Streams):
    """Two CUDA streams of one device."""

    def __init__(self, device: str) -> None:
        import torch

        if not torch.cuda.is_available():
            raise BackendUnavailable("cuda", f"torch sees no CUDA device; got device={device}")
        self._torch = torch
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))
        for stream in self._streams:  # pools and weights were written on the stream of whoever built them
            stream.wait_stream(torch.cuda.current_stream(device))

    def enqueue(self, stream: int, work: Work) -> None:
        """Run the work's host part now, with its device part on the stream."""
        with self._torch.cuda.stream(self._streams[stream]):
            work()

    def record(self, stream: int) -> torch.cuda.Event:
        """Record an event behind everything on the stream."""
        event = self._torch.cuda.Event()
        event.record(self._streams[stream])
        return event

    def wait(self, stream: int, event: torch.cuda.Event) -> None:
        """Let the stream wait for the event."""
        self._streams[stream].wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Let the host wait for the event."""
        event.synchronize()

    def plan(self, progress: Sequence[int]) -> None:
        """The device decides."""


def make_streams(kind: str | None, device: str) -> Streams:
    """Return the streams of a configuration.

    Raises: ContractError for an unknown kind; BackendUnavailable without a CUDA device.
    """
    if kind is None:
        kind = "cuda" if device.startswith("cuda") else "inline"
    if kind == "inline":
        return InlineStreams()
    if kind == "simulated":
        return SimulatedStreams()
    if kind == "cuda":
        return CudaStreams(device)
    raise ContractError("make_streams", "kind in inline, simulated, cuda", {"kind": repr(kind)})
