"""`make gpu` where there is no GPU: it says so, in one line, and does not pass."""

from __future__ import annotations

import pytest
import torch

from minisgl_kernels import backends
from minisgl_ref.bench import gpu


def test_without_a_cuda_device_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the reason in words."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device; `make gpu` runs")

    assert gpu.main() == 2
    assert capsys.readouterr().out == "gpu: cannot run here: no CUDA device\n"


def test_what_it_times_is_what_the_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is a legal call: the same cases, small and on a CPU."""
    sizes = {"NUM_REQS": 2, "NUM_KEYS": 8, "NUM_TOKENS": 8, "NUM_HEADS": 4, "NUM_KV_HEADS": 2, "HIDDEN": 16}
    for name, size in sizes.items():
        monkeypatch.setattr(gpu, name, size)

    for case in gpu.cases("cpu"):
        case.call(backends.get("torch"))
        assert case.num_bytes > 0
