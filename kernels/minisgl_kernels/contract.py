"""What a kernel asks of its arguments: axes, dtypes, device, memory and index ranges, checked before it runs.

A contract is written like a docstring: `k="[num_tokens, num_kv_heads, head_dim] T"`. An axis name that
occurs twice must have one size, a capital letter is a dtype that all its tensors share (`F` a floating
one), and every tensor is on the first one's device. A refusal shows the shapes that disagree and where
each size came from; nothing has been computed or written by then.

The last part derives error bounds: `gamma(n, u)` bounds the relative error of n roundings.
No check converts or copies a tensor to make it fit.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch

from minisgl_spec.errors import ContractError

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.int32, torch.int64})
NAMED_DTYPES: dict[str, frozenset[torch.dtype]] = {
    "float": FLOATS,
    "int": INTEGERS,
    "F": FLOATS,
    "T": frozenset(DTYPE_NAMES),
    **{name: frozenset({dtype}) for dtype, name in DTYPE_NAMES.items()},
}

REMEMBERED = 4096  # combinations of shapes that a contract has accepted and need not look at again

_TENSOR = re.compile(r"\[(?P<axes>[^]]*)\] (?P<dtype>\w+)")
_AXIS = re.compile(r"(?P<symbol>\w+|\.\.\.)(?: \+ (?P<more>\d+))?")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a contract.

    text:         as it was written.
    axes:         symbol and offset of each axis, without a leading `...`.
    any_leading:  whether it begins with `...`.
    shared:       the letter of the dtype it shares with others, or None.
    dtypes:       those it may have.
    """

    text: str
    axes: tuple[tuple[str, int], ...]
    any_leading: bool
    shared: str | None
    dtypes: frozenset[torch.dtype]


def parse_spec(text: str) -> TensorSpec:
    """Read `[num_reqs + 1, head_dim] f32`; a leading `...` stands for any number of equal axes."""
    tensor = _TENSOR.fullmatch(text)
    if tensor is None or tensor["dtype"] not in NAMED_DTYPES:
        raise ContractError(
            "parse_spec", "'[axis, axis + 1] dtype'", {"text": text, "dtypes": list(NAMED_DTYPES)}
        )
    axes: list[tuple[str, int]] = []
    for word in filter(None, tensor["axes"].split(", ")):
        axis = _AXIS.fullmatch(word)
        if axis is None:
            raise ContractError("parse_spec", "an axis like 'head_dim' or 'num_reqs + 1'", {"axis": word})
        axes.append((axis["symbol"], int(axis["more"] or 0)))
    any_leading = bool(axes) and axes[0][0] == "..."
    dtype = tensor["dtype"]
    shared = dtype if dtype.isupper() else None
    return TensorSpec(text, tuple(axes[any_leading:]), any_leading, shared, NAMED_DTYPES[dtype])


def describe(tensor: torch.Tensor) -> str:
    """Shape and dtype as in a contract, with the device if it is not the CPU."""
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{list(tensor.shape)} {DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))}{place}"


class Contract:
    """The tensors of one operation, by name, in argument order."""

    def __init__(self, operation: str, **tensors: str) -> None:
        self.operation = operation
        self.specs = {name: parse_spec(text) for name, text in tensors.items()}
        self._ordered = tuple(self.specs.values())
        self._accepted: set[tuple[tuple[torch.Size, torch.dtype, torch.device], ...]] = set()

    def check(self, *tensors: torch.Tensor) -> None:
        """Refuse tensors whose axes, dtypes or devices disagree with the contract or with each other.

        Args:
            tensors: as many as the contract names, in its order.

        Raises: ContractError with every shape and dtype, naming the first tensor that does not fit.
        """
        signature = tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors])
        if signature in self._accepted:
            return
        self._check_axes(tensors)
        if len(self._accepted) >= REMEMBERED:
            self._accepted.clear()
        self._accepted.add(signature)

    def _check_axes(self, tensors: tuple[torch.Tensor, ...]) -> None:
        sizes: dict[str, int] = {}
        dtypes: dict[str, torch.dtype] = {}
        leading: torch.Size | None = None
        device = tensors[0].device
        for spec, tensor in zip(self._ordered, tensors, strict=True):
            shape, dtype = tensor.shape, tensor.dtype
            fits = dtype in spec.dtypes and tensor.device == device
            if spec.shared is not None:
                fits = fits and dtypes.setdefault(spec.shared, dtype) is dtype
            extra = len(shape) - len(spec.axes)
            if spec.any_leading and extra >= 0:
                leading = shape[:extra] if leading is None else leading
                fits = fits and leading == shape[:extra]
                shape = shape[extra:]
            elif extra != 0:
                self._refuse(spec, tensors)
            for (symbol, more), size in zip(spec.axes, shape, strict=True):
                fits = fits and sizes.setdefault(symbol, size - more) == size - more
            if not fits:
                self._refuse(spec, tensors)

    def _refuse(self, misfit: TensorSpec, tensors: tuple[torch.Tensor, ...]) -> NoReturn:
        need = ", ".join(f"{name} {spec.text}" for name, spec in self.specs.items())
        got = {name: describe(tensor) for name, tensor in zip(self.specs, tensors, strict=True)}
        first = next(name for name, spec in self.specs.items() if spec is misfit)
        raise ContractError(self.operation, need, got, f"{first} is the first that does not fit.")


# Memory.


def has_contiguous_rows(tensor: torch.Tensor) -> bool:
    """Whether each `tensor[i]` of a [rows, heads, head_dim] tensor is one contiguous piece."""
    _, heads, head_dim = tensor.shape
    _, head_stride, element_stride = tensor.stride()
    return (element_stride == 1 or head_dim <= 1) and (head_stride == head_dim or heads <= 1)


def as_contiguous_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if each `tensor[i]` is one contiguous piece, else a contiguous copy."""
    return tensor if has_contiguous_rows(tensor) else tensor.contiguous()


def check_on_cpu(operation: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that C cannot reach."""
    if not tensor.is_cpu:
        raise ContractError(
            operation, "tensors on the CPU", {"device": tensor.device}, "Take the backend `torch` there."
        )


def check_cache_layout(operation: str, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Refuse a cache whose slots are not contiguous pieces that lie apart from each other."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        num_slots, heads, head_dim = cache.shape
        slot_step, head_step, element_step = cache.stride()
        contiguous = (element_step == 1 or head_dim <= 1) and (head_step == head_dim or heads <= 1)
        if not contiguous or (slot_step < heads * head_dim and num_slots > 1):
            raise ContractError(
                operation,
                f"each {name}[slot] contiguous and apart from the others",
                {"shape": list(cache.shape), "stride": list(cache.stride())},
                "A layer's view of the pool is.",
            )


def memory_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses [first, last) between the tensor's first and last byte; empty for an empty tensor."""
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return first, first
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (steps + 1) * tensor.element_size()


def check_disjoint(
    operation: str, written: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]
) -> None:
    """Refuse a written tensor whose range of addresses meets that of another argument.

    Ranges are compared, not elements: two interleaved views of one tensor are refused, too.
    """
    ranges = {name: memory_range(tensor) for name, tensor in {**written, **read}.items()}
    names = list(ranges)
    for position, one in enumerate(names[: len(written)]):
        for other in names[position + 1 :]:
            (start, end), (other_start, other_end) = ranges[one], ranges[other]
            if max(start, other_start) < min(end, other_end):
                raise ContractError(
                    operation,
                    f"{one} and {other} apart in memory",
                    {one: f"[{start:#x}, {end:#x})", other: f"[{other_start:#x}, {other_end:#x})"},
                    f"{one} is written; pass a copy of the other.",
                )


# Values.


def can_read(tensor: torch.Tensor) -> bool:
    """Whether there are values to look at: not on a CUDA stream that is being captured into a graph."""
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def check_in_range(operation: str, name: str, values: torch.Tensor, limit_name: str, limit: int) -> None:
    """Refuse an index outside [0, limit), showing the first one and where it is."""
    if values.numel() == 0 or not can_read(values):
        return
    low, high = torch.aminmax(values)
    if low.item() < 0 or high.item() >= limit:
        flat = values.flatten()
        at = int(((flat < 0) | (flat >= limit)).nonzero()[0].item())
        got = {f"{name}[{at}]": int(flat[at].item()), limit_name: limit}
        raise ContractError(operation, f"every {name} in 0:{limit_name}", got)


# Error bounds. u is the largest relative error of one rounding to nearest.


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of this dtype: 2**-24 for f32, 2**-8 for bf16."""
    return torch.finfo(dtype).eps / 2


def gamma(roundings: int, u: float) -> float:
    """Bound the relative error of n roundings to u; of a sum of n products, over the sum of their sizes."""
    return roundings * u / (1 - roundings * u)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a fast backend accumulates this dtype in: float32, and float64 for float64."""
    return torch.promote_types(dtype, torch.float32)
