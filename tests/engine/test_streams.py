"""Claims about streams: what runs in which order, when, and what a host wait runs.

Work here writes its name into a list, so that the list is the order in which the device ran.
Guide: tests/README.md
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minisgl_ref.engine.stream import (
    ENGINE,
    EVERYTHING,
    NOTHING,
    SCHEDULER,
    InlineStreams,
    SimulatedStreams,
    Streams,
    make_streams,
)
from minisgl_spec.errors import BackendUnavailable, ContractError

ONE_OF_SCHEDULER, ONE_OF_ENGINE, TWO_OF_SCHEDULER, TWO_OF_ENGINE = 2, 3, 4, 5


class Device:
    """Simulated streams, and the names of the work that has run."""

    def __init__(self, *progress: int) -> None:
        self.streams = SimulatedStreams()
        self.ran: list[str] = []
        self.streams.plan((NOTHING, *progress))  # the first decision is taken at once

    def hand(self, stream: int, *names: str) -> None:
        """Hand work to a stream."""
        for name in names:
            self.streams.enqueue(stream, self.work(name))

    def work(self, name: str) -> Callable[[], None]:
        """Work that notes its name."""
        return lambda: self.ran.append(name)


# -- simulated: what runs when ---------------------------------------------------------------------


def test_without_a_plan_nothing_runs_before_somebody_waits() -> None:
    """Work runs as late as it can. (07-overlap.md#streams)"""
    device = Device()

    device.hand(SCHEDULER, "a", "b")
    device.hand(ENGINE, "x")

    assert device.ran == []
    assert device.streams.num_late == 3


def test_everything_runs_what_both_streams_hold() -> None:
    """One decision per piece of work handed over. (07-overlap.md#streams)"""
    device = Device(NOTHING, NOTHING, EVERYTHING)

    device.hand(SCHEDULER, "a", "b")
    device.hand(ENGINE, "x")

    assert device.ran == ["a", "b", "x"]
    assert device.streams.num_late == 2


@pytest.mark.parametrize(
    ("decision", "ran"),
    [
        (NOTHING, []),
        (EVERYTHING, ["a", "b", "c", "x", "y"]),
        (ONE_OF_SCHEDULER, ["a"]),
        (ONE_OF_ENGINE, ["x"]),
        (TWO_OF_SCHEDULER, ["a", "b"]),
        (TWO_OF_ENGINE, ["x", "y"]),
        (6, ["a", "b", "c"]),
        (20, ["a", "b", "c"]),
    ],
)
def test_a_decision_says_how_many_items_of_which_stream_run(decision: int, ran: list[str]) -> None:
    """d runs 1 + (d - 2) // 2 items of stream (d - 2) % 2, if there are any. (07-overlap.md#streams)"""
    device = Device()
    device.hand(SCHEDULER, "a", "b", "c")
    device.hand(ENGINE, "x", "y")

    device.streams.plan((decision,))

    assert device.ran == ran


def test_a_new_plan_replaces_what_is_left_of_the_old() -> None:
    """A plan is for one step. (07-overlap.md#streams)"""
    device = Device(EVERYTHING, EVERYTHING)

    device.streams.plan((NOTHING,))
    device.hand(SCHEDULER, "a")

    assert device.ran == []


# -- simulated: order ------------------------------------------------------------------------------


def test_two_streams_are_not_ordered() -> None:
    """What was handed over last may run first. (07-overlap.md#streams)"""
    device = Device(NOTHING, ONE_OF_ENGINE)

    device.hand(SCHEDULER, "a")
    device.hand(ENGINE, "x")

    assert device.ran == ["x"]


def test_work_behind_an_event_does_not_run_before_it() -> None:
    """The plan asks for it, the order forbids it. (07-overlap.md#streams)"""
    device = Device()
    device.hand(SCHEDULER, "a")
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(ENGINE, "x")

    device.streams.plan((ONE_OF_ENGINE,))

    assert device.ran == []


def test_work_behind_an_event_that_has_happened_may_run() -> None:
    """The event stands for what was handed over before it, and for nothing after. (07-overlap.md#streams)"""
    device = Device()
    device.hand(SCHEDULER, "a")
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(SCHEDULER, "b")
    device.hand(ENGINE, "x")

    device.streams.plan((ONE_OF_SCHEDULER,))
    device.streams.plan((ONE_OF_ENGINE,))

    assert device.ran == ["a", "x"]


def test_work_handed_over_before_the_wait_is_not_held_up() -> None:
    """A wait orders what comes after it. (07-overlap.md#streams)"""
    device = Device()
    device.hand(ENGINE, "x")
    device.hand(SCHEDULER, "a")
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(ENGINE, "y")

    device.streams.plan((TWO_OF_ENGINE,))

    assert device.ran == ["x"]


def test_an_event_of_an_empty_stream_has_happened() -> None:
    """There is nothing to wait for. (07-overlap.md#streams)"""
    device = Device()
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(ENGINE, "x")

    device.streams.plan((ONE_OF_ENGINE,))

    assert device.ran == ["x"]


# -- simulated: a host wait ------------------------------------------------------------------------


def test_a_host_wait_runs_what_the_event_needs_and_nothing_else() -> None:
    """Of both streams. (07-overlap.md#streams)"""
    device = Device()
    device.hand(SCHEDULER, "a")
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(ENGINE, "x")
    event = device.streams.record(ENGINE)
    device.hand(SCHEDULER, "b")
    device.hand(ENGINE, "y")

    device.streams.synchronize(event)

    assert device.ran == ["a", "x"]


def test_a_host_wait_follows_the_events_of_events() -> None:
    """x waits for b, and b for w. (07-overlap.md#streams)"""
    device = Device()
    device.hand(ENGINE, "w")
    device.streams.wait(SCHEDULER, device.streams.record(ENGINE))
    device.hand(SCHEDULER, "b")
    device.streams.wait(ENGINE, device.streams.record(SCHEDULER))
    device.hand(ENGINE, "x")

    device.streams.synchronize(device.streams.record(ENGINE))

    assert device.ran == ["w", "b", "x"]


def test_a_host_wait_for_what_has_run_runs_nothing() -> None:
    """The event has happened. (07-overlap.md#streams)"""
    device = Device(EVERYTHING)
    device.hand(SCHEDULER, "a")
    event = device.streams.record(SCHEDULER)
    device.hand(SCHEDULER, "b")

    device.streams.synchronize(event)

    assert device.ran == ["a"]


# -- inline and CUDA -------------------------------------------------------------------------------


def test_inline_work_runs_when_it_is_handed_over() -> None:
    """Nothing is ever outstanding. (07-overlap.md#streams)"""
    streams: Streams = InlineStreams()
    ran: list[str] = []
    streams.plan((NOTHING,))

    streams.enqueue(ENGINE, lambda: ran.append("x"))
    streams.wait(SCHEDULER, streams.record(ENGINE))
    streams.enqueue(SCHEDULER, lambda: ran.append("a"))
    streams.synchronize(streams.record(SCHEDULER))

    assert ran == ["x", "a"]


def test_a_cpu_runs_inline_unless_asked_otherwise() -> None:
    """And a program may ask for simulated streams. (config.py)"""
    assert type(make_streams(None, "cpu")) is InlineStreams
    assert type(make_streams("inline", "cpu")) is InlineStreams
    assert type(make_streams("simulated", "cpu")) is SimulatedStreams


def test_an_unknown_kind_of_stream_is_refused() -> None:
    """By its name. (config.py)"""
    with pytest.raises(ContractError) as refused:
        make_streams("fast", "cpu")

    assert str(refused.value) == "make_streams: need kind in inline, simulated, cuda; got kind='fast'."


@pytest.mark.parametrize("kind", ["cuda", None])
def test_cuda_streams_without_a_device_are_refused_in_words(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the device that was asked for. (07-overlap.md#streams)"""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    with pytest.raises(BackendUnavailable) as refused:
        make_streams(kind, "cuda:0")

    assert str(refused.value) == (
        "backend cuda is not available: torch sees no CUDA device; got device=cuda:0"
    )


@pytest.mark.gpu
def test_a_cuda_stream_runs_behind_the_event_it_waits_for() -> None:
    """A long fill on one stream, a copy of it on the other. (07-overlap.md#streams)"""
    import torch

    streams = make_streams("cuda", "cuda")
    source = torch.zeros(1 << 24, device="cuda")
    copies: list[torch.Tensor] = []

    def fill() -> None:
        for _ in range(64):
            source.add_(1)

    streams.enqueue(SCHEDULER, fill)
    streams.wait(ENGINE, streams.record(SCHEDULER))
    streams.enqueue(ENGINE, lambda: copies.append(source.clone()))
    streams.synchronize(streams.record(ENGINE))

    assert bool((copies[0] == 64).all())


# -- CUDA: what can be said without a device -------------------------------------------------------


class _CudaStream:
    """A stream that notes what it waits for."""

    def __init__(self, device: str) -> None:
        self.waits: list[str] = [f"made on {device}"]

    def wait_stream(self, other: str) -> None:
        """Note it."""
        self.waits.append(other)


def test_cuda_streams_begin_after_the_stream_that_built_the_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and pools were written there. (07-overlap.md#streams)"""
    made: list[_CudaStream] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"current of {device}")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(_CudaStream(device)) or made[-1])

    make_streams(None, "cuda:1")

    assert [stream.waits for stream in made] == [["made on cuda:1", "current of cuda:1"]] * 2
