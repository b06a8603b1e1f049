"""The state graph: every edge of a small model, as programs that run on real targets.

TLC dumps the graph of a model; an edge carries the event it ends with, so each knows its operation
and its answer. A walk that always goes to the nearest edge not yet covered turns the graph into
programs, each with the events the model expects, and whoever runs them is held to every answer.

Nothing here knows an engine.
Chapter: tla/README.md
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisgl_conformance.tla import tlc
from minisgl_conformance.tla.traces import to_tla
from minisgl_spec.messages import GREEDY
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.requests import Config
from minisgl_spec.trace import Json

BATCH_MODULUS = 3  # batches in a graph are numbered modulo this, so that the graph is finite

State = str
Event = tuple[Any, ...]

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(,style = filled)?\]', re.MULTILINE)
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass(frozen=True)
class Edge:
    """One step of the model, between states without their `event`."""

    source: int
    event: Event
    target: int


@dataclass
class Graph:
    """States are numbered; `configs` are the texts of `config` in the initial states."""

    initial: dict[int, str] = field(default_factory=dict)
    edges: dict[int, list[Edge]] = field(default_factory=lambda: defaultdict(list))

    @property
    def num_edges(self) -> int:
        """Return the number of edges."""
        return sum(len(edges) for edges in self.edges.values())


def read_graph(dot: Path) -> Graph:
    """Read what `-dump dot,actionlabels` wrote; states that differ in `event` only become one."""
    text = dot.read_text()
    numbers: dict[State, int] = {}
    state_of: dict[str, int] = {}
    event_of: dict[str, Event] = {}
    graph = Graph()
    for node, label, filled in _NODE.findall(text):
        variables = _variables(label)
        event_of[node] = parse_tuple(variables.pop("event"))
        state = "\n".join(f"{name} = {value}" for name, value in sorted(variables.items()))
        state_of[node] = numbers.setdefault(state, len(numbers))
        if filled:
            graph.initial[state_of[node]] = variables["config"]
    seen: set[Edge] = set()
    for source, target, _ in _EDGE.findall(text):
        edge = Edge(state_of[source], event_of[target], state_of[target])
        if edge not in seen:
            seen.add(edge)
            graph.edges[edge.source].append(edge)
    return graph


def _variables(label: str) -> dict[str, str]:
    text = label.replace('\\"', '"').replace("\\\\", "\\")
    parts = re.split(r"(?:^|\\n)/\\ ", text)
    pairs = (part.split(" = ", 1) for part in parts if " = " in part)
    return {name.strip(): value.replace("\\n", " ").strip() for name, value in pairs}


def parse_tuple(text: str) -> Event:
    """Read a tuple of integers and tuples in TLA+."""
    python = re.sub(r"<<\s*>>", "()", text).replace("<<", "(").replace(">>", ",)")
    value: Event = eval(python, {"__builtins__": {}})
    return value


def walks(graph: Graph, is_rest: Mapping[int, bool] | None = None) -> Iterator[list[Edge]]:
    """Cover every edge: from an initial state always to the nearest edge not yet walked.

    A walk that has gone as far as it can ends; the next starts at an initial state again.
    """
    left: dict[int, deque[Edge]] = {state: deque(edges) for state, edges in graph.edges.items()}
    num_left = graph.num_edges
    starts = list(graph.initial)
    while num_left:
        walked: list[Edge] = []
        for start in starts:
            state = start
            while (path := _to_nearest(graph, left, state)) is not None:
                for edge in path:
                    walked.append(edge)
                    if edge in left[edge.source]:
                        left[edge.source].remove(edge)
                        num_left -= 1
                state = walked[-1].target
            if walked:
                yield walked
                walked = []
        if not walked and not any(left.values()):
            return


def _to_nearest(graph: Graph, left: Mapping[int, deque[Edge]], start: int) -> list[Edge] | None:
    """Return the shortest path from `start` whose last edge has not been walked."""
    came: dict[int, Edge | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if left.get(state):
            path = [left[state][0]]
            before = came[state]
            while before is not None:
                path.append(before)
                before = came[before.source]
            return path[::-1]
        for edge in graph.edges.get(state, ()):
            if edge.target not in came:
                came[edge.target] = edge
                queue.append(edge.target)
    return None


def operations(walk: Sequence[Edge]) -> list[Event]:
    """Return the events of a walk."""
    return [edge.event for edge in walk]


# -- the model of a graph ----------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A small configuration whose graph is dumped: a program's configuration, and what is submitted."""

    config: Json
    submissions: tuple[tuple[tuple[int, ...], int], ...]  # (ids, max_tokens)
    num_requests: int

    def next_tokens(self) -> dict[tuple[int, ...], int]:
        """Return the token the digest model generates after every sequence that can occur."""
        tokens: dict[tuple[int, ...], int] = {}
        for prompt, max_tokens in self.submissions:
            ids = prompt
            for output_idx in range(max_tokens):
                tokens[ids] = digest_next_token(ids, GREEDY, output_idx, self.config["vocab_size"])
                ids = (*ids, tokens[ids])
        return tokens

    def module(self, name: str) -> str:
        """Return the TLA+ module of this setting."""
        config = Config.from_json(self.config)
        table = " @@ ".join(f"({to_tla(ids)} :> {token})" for ids, token in self.next_tokens().items())
        stops = "{" + ", ".join(str(token) for token in config.eos_ids) + "}"
        submissions = ", ".join(
            f"[ids |-> {to_tla(ids)}, max_tokens |-> {max_tokens}, stops |-> {stops}, sampling_fault |-> 0]"
            for ids, max_tokens in self.submissions
        )
        return (
            f"---- MODULE {name} ----\nEXTENDS Scheduler, TLC\n"
            f"graph_table == {table}\n"
            f"graph_configurations == {{[page_size |-> {config.page_size},\n"
            f"  num_pages |-> {config.num_pages}, num_rows |-> {config.num_rows},\n"
            f"  max_seq_len |-> {config.max_seq_len}, row_width |-> {config.row_width},\n"
            f"  token_budget |-> {config.token_budget},\n"
            f'  cache |-> "{config.cache}", is_overlap |-> {str(config.overlap).upper()},\n'
            f"  is_late |-> FALSE, vocab_size |-> {config.vocab_size}, outputs |-> {{0}},\n"
            f"  submissions |-> {{{submissions}}},\n"
            f"  num_requests |-> {self.num_requests}, is_abortable |-> TRUE, is_resettable |-> TRUE,\n"
            f"  batch_modulus |-> {BATCH_MODULUS}, is_counting |-> TRUE]}}\n====\n"
        )


def dump(setting: Setting, tla: Path, mistake: str = "none") -> tuple[Graph, tlc.Outcome]:
    """Let TLC explore a setting, and return its graph; with a mistake, of the model that makes it."""
    with tempfile.TemporaryDirectory(prefix="graph-") as folder:
        module = Path(folder) / "SchedulerGraph.tla"
        module.write_text(setting.module("SchedulerGraph"))
        config = Path(folder) / "SchedulerGraph.cfg"
        text = (tla / "SchedulerGraph.cfg").read_text()
        config.write_text(text.replace('mistake = "none"', f'mistake = "{mistake}"'))
        dot = Path(folder) / "graph.dot"
        options = ("-dump", "dot,actionlabels", str(dot))
        outcome = tlc.run(module, config, options=options, library=tla)
        return read_graph(dot), outcome


def setting(num_requests: int) -> Setting:
    """Return what is replayed: four pages, two rows, chunks, overlap, an exact repeat, a split."""
    config: Json = {
        "page_size": 1,
        "num_pages": 4,
        "num_rows": 2,
        "max_seq_len": 5,
        "token_budget": 2,
        "overlap": True,
        "cache": "radix",
        "vocab_size": 4,
        "eos_ids": [0],
    }
    return Setting(config, (((1,), 2), ((1, 1), 2), ((1, 2, 1), 2)), num_requests)
