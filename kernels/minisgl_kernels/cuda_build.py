"""Compile CUDA C++ with nvcc, and launch it through the CUDA driver: no host compiler's ABI is in between.

Each `.cu` becomes a cubin of one architecture, named by a hash of source, headers, flags and nvcc's version,
in the same cache as the C libraries, published by the same atomic rename. A cubin is machine code: compiling
needs no GPU, loading does. Launches go to torch's current stream.

This file never checks a kernel's arguments: the wrappers do.
Environment: NVCC names a compiler, CUDA_HOME a toolkit; else nvcc on the PATH, else /usr/local/cuda/bin/nvcc.
Chapter: kernels/README.md
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from minisgl_kernels.build import PACKAGE, Compiler, compile_sources
from minisgl_spec.errors import BackendUnavailable

BACKEND = "cuda"
KERNELS = ("store_kv", "gather_kv", "page_table", "paged_attention")
ARCHITECTURES = ("sm_80", "sm_90")  # what CI compiles; a device gets its own
FLAGS = ("-cubin", "-O3", "-Werror", "all-warnings")


def compile_cuda(name: str, architecture: str) -> Path:
    """Compile the `.cu` of one kernel folder (unless cached) and return the cubin.

    Raises: BackendUnavailable without nvcc, or with nvcc's own words if it fails.
    """
    flags = [*FLAGS, f"-arch={architecture}"]
    headers = sorted(PACKAGE.glob("*.cuh"))
    source = PACKAGE / name / f"{name}.cu"
    return compile_sources(BACKEND, find_nvcc(), [source], flags, ".cubin", also_read=headers)


@functools.cache
def find_nvcc() -> Compiler:
    """The nvcc that NVCC names, else that of CUDA_HOME, of the PATH or of /usr/local/cuda.

    Raises: BackendUnavailable if there is none.
    """
    home = os.environ.get("CUDA_HOME", "")
    candidates = [os.environ.get("NVCC", ""), f"{home}/bin/nvcc" if home else "", "nvcc"]
    for candidate in [*candidates, "/usr/local/cuda/bin/nvcc"]:
        path = shutil.which(candidate) if candidate else None
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Compiler((path,), done.stdout.splitlines()[-1])
    raise BackendUnavailable(BACKEND, "no nvcc; install the CUDA toolkit, or name its nvcc in NVCC")


def check_available() -> None:
    """Refuse unless there is a CUDA device and an nvcc to compile for it.

    Raises: BackendUnavailable, in words.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailable(BACKEND, "no CUDA device")
    for name in KERNELS:
        compile_cuda(name, device_architecture(torch.cuda.current_device()))


@functools.cache
def device_architecture(device: int) -> str:
    """The architecture of a device, as nvcc names it."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def launch(
    name: str,
    function: str,
    grid: tuple[int, int],
    num_threads: int,
    arguments: Sequence[Any],
    device: torch.device,
) -> None:
    """Start one kernel on the current stream of a device.

    Args:
        name:         the kernel's folder.
        function:     its entry.
        grid:         blocks along x and y; nothing is launched for none.
        num_threads:  of a block.
        arguments:    C values in the entry's order.

    Raises: RuntimeError with CUDA's error code.
    """
    if grid[0] < 1 or grid[1] < 1:
        return
    index = device.index if device.index is not None else torch.cuda.current_device()
    with torch.cuda.device(index):
        entry = _entry(name, function, index)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (grid[0], grid[1], 1, num_threads, 1, 1, 0)
        _call("cuLaunchKernel", entry, *sizes, stream, pointers, None)


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    """A tensor's memory as an argument."""
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _entry(name: str, function: str, device: int) -> ctypes.c_void_p:
    """The entry of a cubin that is loaded into the device's context; torch has made it."""
    torch.cuda.current_stream(device).synchronize()
    cubin = compile_cuda(name, device_architecture(device)).read_bytes()
    module, entry = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), cubin)
    _call("cuModuleGetFunction", ctypes.byref(entry), module, function.encode())
    return entry


def _call(function: str, *arguments: Any) -> None:
    code = getattr(_driver(), function)(*arguments)
    if code != 0:
        raise RuntimeError(f"{function} failed with CUDA error {code}")
