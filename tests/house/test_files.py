"""What files may and must say: the glossary's units, the targets of `make help`, links that lead somewhere.

Guide: CONTRIBUTING.md
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_FOLDERS = ("spec/minisgl_spec", "spec/minisgl_conformance", "kernels/minisgl_kernels", "minisgl_ref")
NOT_OURS = {"build", "dist", "findings", "__pycache__"}
TEXT = {".py", ".md", ".toml", ".txt", ".c", ".cdef", ".cu", ".json", ".jsonl", ".tla", ".cfg", ""}
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:home|root|work|opt|mnt|Users|tmp|data)/\w")
LINK = re.compile(r"\[[^]]*\]\((?!https?:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
CHAPTERS = re.compile(r"\b(?:Chapter|Spec|Guide): +(?P<pages>[\w./-]+\.md[^\n]*)")
CHAPTER = re.compile(r"(?P<path>[\w./-]+\.md)(?P<anchor>#[\w-]+)?")
TARGET = re.compile(r"^(?P<name>[a-z][a-z-]*):(?!=)", re.MULTILINE)
UNITS = {
    "token": "one position of a sequence",
    "slot": "one token's place in the KV pool",
    "page": "page_size consecutive slots",
    "row": "one request's line of the page table",
    "tick": "one use of the cache",
    "step": "one schedule, forward and process",
    "handle": "what a match returns and a lock holds",
    "uid": "a request",
}


def is_ours(folder: str) -> bool:
    """Say whether a folder belongs to the repository, and was not left by a tool."""
    return folder == ".ci" or not (
        folder in NOT_OURS or folder.startswith(".") or folder.endswith(".egg-info")
    )


def our_files() -> Iterator[Path]:
    """Every text file of the repository, wherever git is absent too."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if is_ours(name))
        yield from (Path(folder, name) for name in sorted(files) if Path(name).suffix in TEXT)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def is_reached(path: Path, anchor: str | None) -> bool:
    """Say whether a page, and the heading in it, exists."""
    if not path.exists():
        return False
    return not anchor or path.suffix != ".md" or anchor.removeprefix("#") in anchors(path)


def make_targets() -> list[str]:
    """The targets of the Makefile, in its order."""
    return TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))


def test_no_file_names_a_path_of_one_machine() -> None:
    """A path that exists on one machine only is of no use to anybody else. (CONTRIBUTING.md)"""
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in our_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]

    assert wrong == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target() -> None:
    """`make help` lists every target with a line of its own. (Makefile)"""
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert [line.split()[0] for line in done.stdout.splitlines()] == make_targets()
    assert [line for line in done.stdout.splitlines() if len(line.split()) < 2] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "tests/README.md", "spec/README.md"])
def test_every_make_command_that_a_page_tells_exists(page: str) -> None:
    """A command that people are told to type has a target. (Makefile)"""
    text = (ROOT / page).read_text(encoding="utf-8")
    told = re.findall(r"(?:`|^ *)make ([a-z][a-z-]*)", text, re.MULTILINE)

    assert set(told) - set(make_targets()) == set()


def test_every_link_leads_somewhere() -> None:
    """A relative link of a page names a file that exists, and a heading in it. (CONTRIBUTING.md)"""
    wrong = [
        f"{path.relative_to(ROOT)} links to {link.group('path')}{link.group('anchor') or ''}"
        for path in our_files()
        if path.suffix == ".md"
        for link in LINK.finditer(path.read_text(encoding="utf-8"))
        if not is_reached(path.parent / link["path"] if link["path"] else path, link["anchor"])
    ]

    assert wrong == []


def test_every_chapter_that_a_docstring_names_exists() -> None:
    """`Chapter:` and `Spec:` name a page, and a heading in it. (CONTRIBUTING.md)"""
    wrong = [
        f"{path.relative_to(ROOT)} names {found.group()}"
        for path in our_files()
        if path.suffix == ".py"
        for line in CHAPTERS.finditer(path.read_text(encoding="utf-8"))
        for found in CHAPTER.finditer(line["pages"])
        if not any(is_reached(ROOT / folder / found["path"], found["anchor"]) for folder in ("", "spec"))
    ]

    assert wrong == []


@pytest.mark.parametrize("folder", PACKAGE_FOLDERS)
def test_every_package_is_typed_and_says_what_it_is_for(folder: str) -> None:
    """A package carries py.typed, and each of its modules has a docstring. (CONTRIBUTING.md)"""
    assert (ROOT / folder / "py.typed").is_file()

    silent = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]

    assert silent == []


def glossary_terms() -> set[str]:
    """The terms of the glossary: whatever stands in backticks or bold in the first column."""
    text = (ROOT / "spec" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return {
        term
        for cell in cells
        for term in re.findall(r"`([^`]+)`|\*\*([^*]+)\*\*", cell)
        for term in term
        if term
    }


def fields_of(path: Path) -> Iterator[str]:
    """The annotated fields of the classes of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


def test_the_glossary_has_every_unit() -> None:
    """Whatever is counted has its word in the glossary. (glossary.md)"""
    assert set(UNITS) - glossary_terms() == set()


def test_the_glossary_has_every_field_of_a_view() -> None:
    """Whatever a view shows, and so an invariant speaks of, has its word in the glossary. (glossary.md)"""
    fields = set(fields_of(ROOT / "spec" / "minisgl_spec" / "views.py"))

    assert fields - glossary_terms() == set()


def test_a_chapter_has_at_most_250_lines() -> None:
    """A chapter can be read in one sitting. (spec/README.md)"""
    chapters = sorted((ROOT / "spec").glob("[0-9][0-9]-*.md"))
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in chapters}

    assert {name: length for name, length in lengths.items() if length > 250} == {}
