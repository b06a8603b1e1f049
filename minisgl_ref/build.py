"""From a configuration and a model to a scheduler that runs: the one place where the parts meet.

Nothing here decides anything at run time.
Chapter: spec/04-requests.md
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from minisgl_kernels import backends
from minisgl_ref.config import EngineConfig
from minisgl_ref.engine.engine import Engine
from minisgl_ref.engine.graph import CudaRecorder, DecodeGraphs
from minisgl_ref.engine.stream import make_streams
from minisgl_ref.kvcache.base import PrefixCache
from minisgl_ref.kvcache.mha_pool import MHAKVCache
from minisgl_ref.kvcache.naive_cache import NaiveCache
from minisgl_ref.kvcache.radix_cache import RadixCache
from minisgl_ref.scheduler.cache import CacheManager
from minisgl_ref.scheduler.scheduler import Scheduler
from minisgl_ref.scheduler.table import TableManager
from minisgl_ref.trace import Recorder
from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    from minisgl_ref.models.base import Model

PREFIX_CACHES: dict[str, type[PrefixCache]] = {"radix": RadixCache, "naive": NaiveCache}

DEVICE_TYPES = ("cpu", "cuda")


def choose_backend(name: str | None, device: str = "cpu") -> backends.Ops:
    """Return a backend's operations for a device.

    With no name: on a CPU the C kernels, or torch and a warning why not; elsewhere torch.

    Raises:
        ContractError for a device that we do not know.
        BackendUnavailable if the device, or a backend asked for by name, cannot be used here.
    """
    if check_device(device).type != "cpu":
        if name == "c":
            raise BackendUnavailable("c", f"its kernels run on the CPU; got device={device}")
        return backends.get(name or "torch")
    if name is not None:
        return backends.get(name)
    try:
        return backends.get("c")
    except BackendUnavailable as error:
        warnings.warn(f"{error}; using the torch backend", stacklevel=2)
        return backends.get("torch")


def check_device(name: str) -> torch.device:
    """Return a device by its name.

    Raises: ContractError if it is no CPU and no CUDA device; BackendUnavailable if this machine lacks it.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICE_TYPES:
        raise ContractError("choose_device", f"a device of {DEVICE_TYPES}", {"device": repr(name)})
    num_devices = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= num_devices:
        raise BackendUnavailable("cuda", f"torch sees {num_devices} CUDA devices; got device={name}")
    return device


def build_scheduler(
    model: Model,
    config: EngineConfig,
    ops: backends.Ops,
    *,
    recorder: Recorder | None = None,
    fill: float = 0.0,
) -> Scheduler:
    """Build pools, streams, engine and scheduler around a model.

    Args:
        fill: what the KV pool holds before it is written; NaN in tests.

    Raises: ContractError, BackendUnavailable as the parts do.
    """
    max_seq_len = longest_sequence(model, config)
    kv_pool = MHAKVCache(
        num_layers=model.config.num_layers,
        num_pages=config.num_pages,
        page_size=config.page_size,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=model.config.dtype,
        ops=ops,
        device=config.device,
        fill=fill,
    )
    table = TableManager(
        config.num_rows,
        max_seq_len,
        config.page_size,
        config.num_pages,
        torch.device(config.device),
        config.check_level,
    )
    prefix_cache = PREFIX_CACHES[config.cache](config.page_size)
    engine = Engine(model, kv_pool, table, make_streams(config.streams, config.device), ops)
    if config.graph_sizes:
        engine.graphs = DecodeGraphs(model, kv_pool, table, CudaRecorder(config.device), config.graph_sizes)
        engine.graphs.record_all()
    return Scheduler(
        engine,
        CacheManager(prefix_cache, config.num_pages, config.check_level),
        table,
        max_seq_len=max_seq_len,
        token_budget=config.token_budget,
        overlap=config.overlap,
        check_level=config.check_level,
        recorder=recorder,
    )


def longest_sequence(model: Model, config: EngineConfig) -> int:
    """Return the tokens of prompt and outputs that model, pool and configuration allow."""
    pool_len = config.num_pages * config.page_size + 1  # the last token is never stored
    limit = min(model.config.max_position, pool_len)
    return limit if config.max_seq_len is None else min(config.max_seq_len, model.config.max_position)
