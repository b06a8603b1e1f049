"""What importing costs: the oracle needs nothing, and nothing loads torch that does not compute.

Each test asks a fresh interpreter, so that what this process has imported cannot hide anything.
Guide: tests/README.md
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]

LOAD_EVERY_MODULE = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import minisgl_spec
for module in pkgutil.walk_packages(minisgl_spec.__path__, "minisgl_spec."):
    importlib.import_module(module.name)
"""

RUN_THE_COMMAND = """
import importlib, sys
module, function, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = "minisgl-ref"
try:
    getattr(importlib.import_module(module), function)()
except SystemExit as exit:
    if exit.code:
        raise
"""

PRINT_WHAT_COMPUTES = """
loaded = {name.partition(".")[0] for name in sys.modules}
heavy = sorted(loaded & {"torch", "transformers", "numpy", "minisgl_ref"})
print("heavy:", *heavy)
"""


def run_python(code: str, *arguments: str, flags: tuple[str, ...] = ("-P",)) -> Done:
    """Run code in a fresh interpreter, away from the repository's root; its output is captured."""
    path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return subprocess.run(
        [sys.executable, *flags, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "100"},
    )


def test_the_oracle_loads_without_any_third_party_package() -> None:
    """Every module of minisgl_spec loads where no site-packages exist. (CONTRIBUTING.md)"""
    done = run_python(LOAD_EVERY_MODULE, str(ROOT / "spec"), flags=("-I", "-S"))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", ["minisgl_spec", "minisgl_conformance", "minisgl_conformance.cli"])
def test_importing_the_oracle_or_the_kit_loads_no_torch(package: str) -> None:
    """Importing the oracle or the conformance kit loads nothing that computes. (CONTRIBUTING.md)"""
    done = run_python(f"import sys, {package}\n{PRINT_WHAT_COMPUTES}")

    assert (done.returncode, done.stdout, done.stderr) == (0, "heavy:\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["fuzz", "--help"]], ids=" ".join)
def test_help_loads_no_torch(arguments: list[str]) -> None:
    """`minisgl-ref --help` and `fuzz --help` load nothing that computes. (CONTRIBUTING.md)"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["minisgl-ref"].partition(":")

    done = run_python(RUN_THE_COMMAND + PRINT_WHAT_COMPUTES, module, function, *arguments)

    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["heavy:"], "")


@pytest.mark.parametrize("name", ["kernels", "spec", "tests", "tla"])
def test_no_folder_of_the_repository_is_an_importable_package(name: str) -> None:
    """A top-level `kernels` would be taken for Hugging Face's package of that name. (CONTRIBUTING.md)"""
    assert not (ROOT / name / "__init__.py").exists()

    done = run_python(f"from importlib.util import find_spec\nprint(find_spec({name!r}))", flags=("-I",))

    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
