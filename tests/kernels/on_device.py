"""A backend of another device, called with tensors of the CPU.

Whole storages travel, so strides, offsets and overlaps stay as the test made them; afterwards their bits
travel back, so a write outside of an argument is seen, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minisgl_kernels.backends import Ops


class OnDevice:
    """The operations of `ops`, which computes on `device`; implements `Ops`."""

    def __init__(self, ops: Ops, device: str) -> None:
        self._ops = ops
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return _travelling(found, self._device) if callable(found) else found


def _travelling(operation: Callable[..., Any], device: str) -> Callable[..., Any]:
    @functools.wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        storages: dict[int, tuple[Tensor, Tensor]] = {}  # by address: the bytes here and there
        try:
            sent = [_send(arg, device, storages) for arg in args]
            result = operation(*sent, **{name: _send(arg, device, storages) for name, arg in kwargs.items()})
            return _fetched(result)
        finally:
            for here, there in storages.values():
                if not here.equal(there.cpu()):
                    here.copy_(there)

    return call


def _send(value: Any, device: str, storages: dict[int, tuple[Tensor, Tensor]]) -> Any:
    if not isinstance(value, Tensor):
        return value
    storage = value.untyped_storage()
    if storage.nbytes() == 0:
        return value.to(device)
    if storage.data_ptr() not in storages:
        here = torch.empty(0, dtype=torch.uint8).set_(storage)
        storages[storage.data_ptr()] = here, here.to(device, copy=True)
    there = storages[storage.data_ptr()][1].untyped_storage()
    empty = torch.empty(0, dtype=value.dtype, device=device)
    return empty.set_(there, value.storage_offset(), value.size(), value.stride())


def _fetched(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_fetched(one) for one in result)
    return result.cpu() if isinstance(result, Tensor) else result
