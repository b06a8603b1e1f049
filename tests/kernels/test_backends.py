"""Which backends there are, how the C is built, and what is said when it cannot be."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minisgl_kernels import backends, build
from minisgl_kernels.backends import Ops
from minisgl_spec.errors import BackendUnavailable, ContractError

OPERATIONS = [name for name in vars(Ops) if not name.startswith("_") and name != "name"]
LOAD = """
from minisgl_kernels.build import load
print(load("compare_key").lib.minisgl_compare_key(b"abcd", b"abcd", 1))
"""
IMPORT = """
import sys
import minisgl_kernels.backends, minisgl_kernels.sanitize
print({"torch", "cffi"} & set(sys.modules))
"""


@pytest.fixture
def fresh_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own, and nothing remembered from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "load", build.load.__wrapped__)
    monkeypatch.setattr(build, "find_compiler", build.find_compiler.__wrapped__)
    return tmp_path


def start_python(code: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_backends_have_the_names_and_arguments_of_the_protocol(ops: Ops, operation: str) -> None:
    """One name and one argument order per operation, in every backend. (HOUSE: a kernel folder)"""
    declared = list(inspect.signature(getattr(Ops, operation)).parameters.values())[1:]
    built = list(inspect.signature(getattr(ops, operation)).parameters.values())

    assert [(p.name, p.kind, p.default) for p in built] == [(p.name, p.kind, p.default) for p in declared]


def test_available_says_why_not_for_each_backend() -> None:
    """Every backend is listed, with None or a reason in words."""
    assert list(backends.available()) == ["torch", "c", "triton", "cuda"]
    assert backends.available()["torch"] is None


def test_an_unknown_backend_is_refused_by_name() -> None:
    """None is made up."""
    with pytest.raises(ContractError) as refusal:
        backends.get("metal")

    assert str(refusal.value) == "get_backend: need name in torch, c, triton, cuda; got name='metal'."


def test_without_a_cuda_device_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the device that is missing, and the interpreter."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton, and no CUDA device")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    reason = backends.why_not("triton")

    assert reason == "no CUDA device; TRITON_INTERPRET=1 runs the kernels in Triton's interpreter, slowly"


def test_without_a_compiler_the_backend_says_so(fresh_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BackendUnavailable names what was tried and what to do; the torch backend stays."""
    monkeypatch.setenv("CC", "no-such-compiler")

    reason = backends.why_not("c")

    assert reason == "no C compiler (tried no-such-compiler); install one, or name one in CC"
    assert backends.why_not("torch") is None


def test_without_a_cache_directory_the_backend_says_so(
    fresh_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that cannot be made is named, with the variable that moves it."""
    (fresh_build / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh_build / "file"))

    with pytest.raises(BackendUnavailable, match=r"no cache directory: .*file.*Set XDG_CACHE_HOME"):
        build.load("compare_key")


def test_a_compiler_that_fails_is_quoted(fresh_build: Path) -> None:
    """The compiler's own words are in the message, and no half-made file stays behind."""
    source = fresh_build / "broken.c"
    source.write_text("int f(void) { return nowhere; }")

    with pytest.raises(BackendUnavailable, match="nowhere"):
        build.compile_c([source], ["-shared", "-fPIC"], suffix=".so")

    assert list((fresh_build / "minisgl-ref").iterdir()) == []


def test_flags_and_sources_name_the_file(fresh_build: Path) -> None:
    """Another flag or another text is another file; the same ones are the same file, not compiled again."""
    source = fresh_build / "one.c"
    source.write_text("int f(void) { return 1; }")
    first = build.compile_c([source], ["-shared", "-fPIC"], suffix=".so")
    again = build.compile_c([source], ["-shared", "-fPIC"], suffix=".so")
    flagged = build.compile_c([source], ["-shared", "-fPIC", "-O1"], suffix=".so")
    source.write_text("int f(void) { return 2; }")
    edited = build.compile_c([source], ["-shared", "-fPIC"], suffix=".so")

    assert first == again
    assert len({first, flagged, edited}) == 3


def test_processes_that_start_together_build_one_library(tmp_path: Path) -> None:
    """Each loads a whole library and one file remains: an atomic rename publishes it."""
    reason = backends.why_not("c")
    if reason is not None:
        pytest.skip(f"backend c: {reason}")
    workers = [start_python(LOAD, XDG_CACHE_HOME=str(tmp_path)) for _ in range(4)]

    outcomes = [worker.communicate(timeout=60) for worker in workers]

    assert [output for output, _ in outcomes] == ["1\n"] * 4, outcomes
    assert len(list((tmp_path / "minisgl-ref").iterdir())) == 1


def test_importing_the_package_imports_neither_torch_nor_cffi() -> None:
    """torch is loaded when a backend is, cffi when C is. (HOUSE: import direction)"""
    output, errors = start_python(IMPORT).communicate(timeout=60)

    assert (output, errors) == ("set()\n", "")


def test_the_c_kernels_pass_under_the_sanitizers(tmp_path: Path) -> None:
    """The self-test passes under ASan and UBSan, and a deliberate read past the end is stopped."""
    reason = backends.why_not("c")
    if reason is not None:
        pytest.skip(f"backend c: {reason}")
    code = "import sys; from minisgl_kernels.sanitize import main; sys.exit(main())"
    worker = start_python(code, XDG_CACHE_HOME=str(tmp_path), LD_PRELOAD="", CC="")

    output, errors = worker.communicate(timeout=60)

    assert (worker.returncode, errors) == (0, "")
    assert output.endswith("a deliberate read past the end: stopped, as it must be\n")
