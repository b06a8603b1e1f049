"""CUDA C++ compiles wherever nvcc is; it runs where there is a GPU, in the same tests as every backend."""

from __future__ import annotations

import ctypes
import re

import pytest

from minisgl_kernels import backends
from minisgl_kernels.build import PACKAGE
from minisgl_kernels.cuda_build import ARCHITECTURES, KERNELS, compile_cuda, find_nvcc
from minisgl_kernels.paged_attention.cuda_kernel import Call
from minisgl_spec.errors import BackendUnavailable

STRUCT = re.compile(r"struct Call \{(.*?)\};", re.DOTALL)


def why_no_nvcc() -> str | None:
    try:
        find_nvcc()
    except BackendUnavailable as error:
        return error.reason
    return None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_nvcc_compiles_every_kernel(name: str, architecture: str) -> None:
    """sm_80 and sm_90, warnings as errors. (kernels/README.md)"""
    if why_no_nvcc() is not None:
        pytest.skip(f"CUDA C++: {why_no_nvcc()}")

    assert compile_cuda(name, architecture).stat().st_size > 0


def test_every_cuda_source_is_compiled() -> None:
    """A `.cu` that no test compiles is dead."""
    assert sorted(path.stem for path in PACKAGE.glob("*/*.cu")) == sorted(KERNELS)


def test_the_arguments_of_attention_are_those_of_its_source() -> None:
    """The struct in Python names the fields of the one in CUDA C++, in order."""
    found = STRUCT.search((PACKAGE / "paged_attention" / "paged_attention.cu").read_text())
    assert found is not None
    names = re.findall(r"\*?(\w+)(?=[,;])", found[1])

    assert [field[0] for field in Call._fields_] == names
    assert ctypes.sizeof(Call) == 8 * 8 + 5 * 8 + 5 * 4 + 4


def test_without_a_device_the_backend_says_so() -> None:
    """On a machine without a GPU the reason is one sentence."""
    reason = backends.why_not("cuda")
    if reason is None:
        pytest.skip("there is a CUDA device")

    assert reason in ("no CUDA device", "triton is not installed; install minisgl-ref[engine]")
