"""What is shipped: four packages, their data, and metadata that keeps torch out of the base install.

`make ci` also builds the wheel and installs it; here its contents are worked out from pyproject.toml.
Guide: tests/README.md
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minisgl_spec.trace import PACKAGE_VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]


def name_of(requirement: str) -> str:
    """The name at the start of a requirement."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match.group()


def test_the_base_install_is_the_oracle_and_the_kit() -> None:
    """Without extras there is no torch. (CONTRIBUTING.md)"""
    names = [name_of(requirement) for requirement in PROJECT["project"]["dependencies"]]

    assert names == ["hypothesis", "jsonschema", "rich", "typer"]


def test_four_packages_are_installed_under_names_of_their_own() -> None:
    """Nothing is installed as `spec`, `kernels` or `tests`. (CONTRIBUTING.md)"""
    assert sorted(FOLDERS) == ["minisgl_conformance", "minisgl_kernels", "minisgl_ref", "minisgl_spec"]
    assert [folder for folder in FOLDERS.values() if not (ROOT / folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("package", FOLDERS)
def test_every_file_of_a_package_is_shipped(package: str) -> None:
    """A file that is neither Python nor named as package data is missing in a wheel. (pyproject.toml)"""
    shipped = ["*.py", *PROJECT["tool"]["setuptools"]["package-data"]["*"]]
    files = [path for path in (ROOT / FOLDERS[package]).rglob("*") if path.is_file()]
    ours = [path for path in files if "__pycache__" not in path.parts]

    missing = [str(path.relative_to(ROOT)) for path in ours if not any(path.match(glob) for glob in shipped)]

    assert missing == []


def test_torch_is_pinned_where_we_install_and_free_where_others_do() -> None:
    """constraints.txt pins torch; the package only names the oldest that will do. (constraints.txt)"""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    engine = PROJECT["project"]["optional-dependencies"]["engine"]

    assert [line for line in constraints if line.startswith("torch=")] == ["torch==2.13.0"]
    assert [requirement for requirement in engine if name_of(requirement) == "torch"] == ["torch>=2.9"]


@pytest.mark.parametrize("extra", ["engine", "dev"])
def test_every_requirement_is_pinned_for_our_own_environment(extra: str) -> None:
    """What `make` installs has one version. (constraints.txt)"""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    needed = {name_of(requirement) for requirement in PROJECT["project"]["optional-dependencies"][extra]}

    assert needed - pinned == set()


def test_the_version_is_told_once() -> None:
    """Traces carry the version that pip shows. (pyproject.toml)"""
    assert PROJECT["project"]["version"] == PACKAGE_VERSION
