"""EngineConfig: everything an engine is built with, frozen, validated once.

What only the model knows (its longest position, its vocabulary) is resolved when the engine is
built; nothing here loads or imports anything heavy.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

from dataclasses import dataclass

from minisgl_ref.checks import CheckLevel
from minisgl_spec.errors import ContractError

CACHES = ("radix", "naive")
STREAMS = ("inline", "simulated", "cuda")
GRAPH_BACKENDS = ("triton", "cuda")  # theirs launch without a look at the host
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The measures and choices of one engine.

    page_size:     slots per page.
    num_pages:     pages of the KV pool, the dummy page not counted.
    num_rows:      requests that may hold a row at a time.
    max_seq_len:   tokens of prompt and outputs together; None takes the model's, as far as the pool goes.
    token_budget:  prefill tokens in one step.
    cache:         "radix" shares prefixes, "naive" shares nothing.
    overlap:       launch the next batch before the last one is processed.
    streams:       how work reaches the device: "cuda" on a CUDA device, else "inline" or "simulated";
                   None chooses "cuda" or "inline".
    backend:       which kernels: "torch", "c" or "triton"; None takes "c" where it can be built.
    check_level:   what is checked after every operation: a CheckLevel, its number or its name.
    num_threads:   threads torch may use; None leaves it as it is.
    graph_sizes:   requests of the decode steps that are recorded as CUDA graphs, ascending; none without.
    """

    page_size: int = 16
    num_pages: int = 512
    num_rows: int = 16
    max_seq_len: int | None = None
    token_budget: int = 512
    cache: str = "radix"
    overlap: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    streams: str | None = None
    backend: str | None = None
    check_level: CheckLevel = CheckLevel.LOCAL
    num_threads: int | None = None
    graph_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("page_size", "num_pages", "num_rows", "token_budget"):
            self._need_positive(name)
        for name in ("max_seq_len", "num_threads"):
            if getattr(self, name) is not None:
                self._need_positive(name)
        self._need_one_of("cache", CACHES)
        self._need_one_of("dtype", DTYPES)
        self._need_one_of("streams", (*STREAMS, None))
        for name, kind, words in (("overlap", bool, "True or False"), ("device", str, "a name")):
            if not isinstance(getattr(self, name), kind):
                need = f"{name}: {words}"
                raise ContractError("EngineConfig", need, {name: repr(getattr(self, name))})
        self._check_streams()
        if self.graph_sizes and (not self.device.startswith("cuda") or self.backend not in GRAPH_BACKENDS):
            got = {"graph_sizes": self.graph_sizes, "device": self.device, "backend": repr(self.backend)}
            raise ContractError(
                "EngineConfig", f"a CUDA device and a backend in {', '.join(GRAPH_BACKENDS)} for graphs", got
            )
        object.__setattr__(self, "check_level", _level_of(self.check_level))

    def _check_streams(self) -> None:
        """Refuse streams that are not the device's: on CUDA only its own make the host wait for a result."""
        on_cuda = self.device.startswith("cuda")
        if self.streams is not None and (self.streams == "cuda") != on_cuda:
            raise ContractError(
                "EngineConfig",
                "streams=cuda on a CUDA device" if on_cuda else "a CUDA device for streams=cuda",
                {"streams": self.streams, "device": self.device} if on_cuda else {"device": self.device},
                "Leave streams out.",
            )

    def _need_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ContractError("EngineConfig", f"a whole number {name} >= 1", {name: value})

    def _need_one_of(self, name: str, values: tuple[str | None, ...]) -> None:
        if getattr(self, name) not in values:
            raise ContractError("EngineConfig", f"{name} in {values}", {name: repr(getattr(self, name))})


def _level_of(value: object) -> CheckLevel:
    """Return a check level by itself, its number or its name."""
    by_name = {name: level for level in CheckLevel for name in (level.name, level.name.lower())}
    level = by_name.get(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool) and value in tuple(CheckLevel):
        level = CheckLevel(value)
    if level is None:
        names = ", ".join(level.name for level in CheckLevel)
        raise ContractError("EngineConfig", f"a check_level of {names}", {"check_level": repr(value)})
    return level
