"""Every kernel fault is found by the claim it names, and the kernels as they are by none.

Guide: tests/README.md, kind (g)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from minisgl_kernels import backends
from minisgl_ref.zoo.kernels import FAULTS, KernelFault, load
from minisgl_spec.errors import ContractError

from .kernel_judges import JUDGES

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is imported

LEAST_FAULTS = 40


def backend_of(fault: KernelFault) -> str:
    file = fault.file.rpartition("/")[2]
    return {"triton_kernel.py": "triton", "torch_kernel.py": "torch"}.get(file, "c")


def skip_unless_available(backend: str) -> None:
    reason = backends.why_not(backend)
    if reason is not None:
        pytest.skip(f"backend {backend}: {reason}")


@pytest.mark.parametrize("backend", ["torch", "c", "triton"])
@pytest.mark.parametrize("operation", JUDGES)
def test_no_kernel_is_suspected(backend: str, operation: str) -> None:
    """No false alarm. (kernels/README.md)"""
    skip_unless_available(backend)

    assert JUDGES[operation](getattr(backends.get(backend), operation)) is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_kernel_fault_is_found_by_its_rule(fault: KernelFault, tmp_path: Path) -> None:
    """The claim that the fault names is the one that is broken. (kernels/README.md)"""
    skip_unless_available(backend_of(fault))

    assert JUDGES[fault.operation](load(fault, tmp_path)) == fault.rule, fault.sentence


def test_there_are_enough_kernel_faults() -> None:
    """At least forty, each with a name of its own."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= LEAST_FAULTS


def test_a_kernel_fault_whose_anchor_is_gone_is_refused(tmp_path: Path) -> None:
    """The source has moved on, and the fault with it."""
    fault = KernelFault("gone", "linear", "linear/linear.c", "no such text", "", "", "")

    with pytest.raises(ContractError, match="an anchor that occurs exactly once"):
        load(fault, tmp_path)
