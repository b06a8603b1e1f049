"""Serving SmolLM2-135M: output tokens a second on the C backend, the torch backend and in transformers.

Every request is a shared prefix and some tokens of its own, all known at the start; outputs are greedy and of
one length, in float32. The engines serve the same requests one after the other in one run, so what counts is
the ratio. transformers runs `generate_batch` with at most 8 requests in a batch, its best setting
here. Seconds are those of the clock, with as many threads as torch has.

Nothing here judges the outputs: it counts how many are the same in each engine.
Chapter: kernels/README.md
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams

PAGE_SIZE = 16
BACKENDS = ("c", "torch")
TRANSFORMERS = "transformers"
MOST_IN_A_BATCH = 8  # of transformers
TOKENS = range(1000, 40000)  # of SmolLM2's vocabulary, none of them special
DTYPE = "float32"

Outputs = list[tuple[int, ...]]
Serve = Callable[[Sequence[Sequence[int]], int], Outputs]


@dataclass(frozen=True)
class Workload:
    """How many requests, and of how many tokens: shared, their own, generated."""

    num_requests: int = 64
    prefix_len: int = 512
    unique_len: int = 32
    output_len: int = 32

    def prompts(self) -> list[list[int]]:
        """The same prompts every time."""
        draw = random.Random(0)
        prefix = draw.choices(TOKENS, k=self.prefix_len)
        return [prefix + draw.choices(TOKENS, k=self.unique_len) for _ in range(self.num_requests)]


@dataclass(frozen=True)
class ServingResult:
    """What one engine did. `ratio`: over transformers; `same`: outputs equal to the first engine's."""

    engine: str
    tokens_per_second: float
    seconds: float
    ratio: float
    same: int
    num_requests: int

    def __str__(self) -> str:
        return (
            f"serving, {self.num_requests} requests, {self.engine}: "
            f"{self.tokens_per_second:.1f} output tokens/s, {self.ratio:.2f} x {TRANSFORMERS}, "
            f"{self.same} of {self.num_requests} outputs the same"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def bench_serving(path: Path, workload: Workload) -> list[ServingResult]:
    """Serve one workload with every engine that is here.

    Args:
        path: SmolLM2 as a GGUF file.
    """
    seconds: dict[str, float] = {}
    outputs: dict[str, Outputs] = {}
    for name, serve in _engines(path, workload):
        serve([list(TOKENS[:40])], 2)  # builds, packs and warms up
        start = perf_counter()
        outputs[name] = serve(workload.prompts(), workload.output_len)
        seconds[name] = perf_counter() - start
    first = next(iter(outputs.values()))
    num_tokens = workload.num_requests * workload.output_len
    return [
        ServingResult(
            engine=name,
            tokens_per_second=num_tokens / seconds[name],
            seconds=seconds[name],
            ratio=seconds[TRANSFORMERS] / seconds[name],
            same=sum(one == other for one, other in zip(outputs[name], first, strict=True)),
            num_requests=workload.num_requests,
        )
        for name in seconds
    ]


def _engines(path: Path, workload: Workload) -> Iterator[tuple[str, Serve]]:
    from minisgl_kernels import backends

    for backend in BACKENDS:
        if backends.why_not(backend) is None:
            yield f"backend {backend}", _ours(path, workload, backend)
    yield TRANSFORMERS, _transformers(path)


def _ours(path: Path, workload: Workload, backend: str) -> Serve:
    from minisgl_ref.llm import LLM
    from minisgl_ref.models.load import load

    model, _ = load(path, dtype=DTYPE, backend=backend)
    own = workload.unique_len + workload.output_len
    config = EngineConfig(
        page_size=PAGE_SIZE,
        num_pages=-(-(2 * workload.prefix_len + workload.num_requests * (own + PAGE_SIZE)) // PAGE_SIZE),
        num_rows=workload.num_requests,
        backend=backend,
        dtype=DTYPE,
    )
    llm = LLM.from_model(model, None, config)

    def serve(prompts: Sequence[Sequence[int]], output_len: int) -> Outputs:
        params = SamplingParams(max_tokens=output_len, ignore_eos=True)
        return [output.output_ids for output in llm.generate(list(prompts), params)]

    return serve


def _transformers(path: Path) -> Serve:
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
    from transformers.utils import logging as transformers_logging

    from minisgl_ref.models.gguf import converted_folder

    show_no_bars: Callable[[], None] = transformers_logging.disable_progress_bar
    show_no_bars()
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(converted_folder(path)), dtype=torch.float32, local_files_only=True
    )
    model.eval()
    settings: Any = GenerationConfig

    def serve(prompts: Sequence[Sequence[int]], output_len: int) -> Outputs:
        found = model.generate_batch(
            inputs=[list(prompt) for prompt in prompts],
            generation_config=settings(
                max_new_tokens=output_len, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(max_requests_per_batch=MOST_IN_A_BATCH),
        )
        in_order = sorted(found.values(), key=lambda one: int(one.request_id.rsplit("_", 1)[1]))
        return [tuple(one.generated_tokens) for one in in_order]

    return serve
