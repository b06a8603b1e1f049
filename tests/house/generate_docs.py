"""Writes what the documentation repeats: `spec/invariants.md`, and the code and files that chapters include.

    python tests/house/generate_docs.py            rewrite what has drifted
    python tests/house/generate_docs.py --check    print the differences instead; exit 1 if there are any

`spec/invariants.md` is made whole from `invariants.py` and `contracts.py`. In a chapter, the fenced block
after one of these lines is replaced:

    <!-- code: spec/minisgl_spec/units.py align_up -->      a function or class, without its docstring
    <!-- file: tests/transcripts/split.txt -->              a whole file

Nothing here runs the code that it quotes.
Guide: spec/README.md
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from minisgl_spec.contracts import CONTRACTS
from minisgl_spec.invariants import INVARIANTS

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(
    r"(?P<mark><!-- (?P<kind>code|file): (?P<path>\S+)(?: (?P<name>[\w.]+))? -->\n)"
    r"```(?P<language>\w*)\n.*?^```$",
    re.DOTALL | re.MULTILINE,
)

HEADER = """\
# Invariants and contracts

Generated from the docstrings of [invariants.py](minisgl_spec/invariants.py) and
[contracts.py](minisgl_spec/contracts.py) by `tests/house/generate_docs.py`; `make check` finds drift.
The name is the same in errors, in `Keeps:` lines, in regressions and in the catalogue of deliberate bugs.
"""
INVARIANTS_TEXT = """
## Invariants

True of every view between two operations. A *view* is a picture of the state in plain numbers; the *judge*
says what is looked at: the structure of the data, the ownership of pages and rows, or the content of slots.
"""
CONTRACTS_TEXT = """
## Contracts

What one operation promises about before and after, and what a whole run promises.
"""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Draw a Markdown table."""
    lines = [list(columns), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join("| " + " | ".join(line) + " |\n" for line in escaped)


def invariants_page() -> str:
    """Write spec/invariants.md."""
    invariants = [
        (f"`{rule.name}`", rule.judge, f"`{rule.view_type.__name__}`", rule.sentence)
        for rule in INVARIANTS.values()
    ]
    contracts = [(f"`{rule.name}`", rule.sentence) for rule in CONTRACTS.values()]
    return (
        f"{HEADER}{INVARIANTS_TEXT}\n{table(('name', 'judge', 'view', 'sentence'), invariants)}"
        f"{CONTRACTS_TEXT}\n{table(('name', 'sentence'), contracts)}"
    )


def find_definition(tree: ast.AST, name: str) -> ast.stmt:
    """Find a function or class by its dotted name."""
    for part in name.split("."):
        body: list[ast.stmt] = getattr(tree, "body", [])
        named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        matches = [node for node in body if isinstance(node, named) and node.name == part]
        if len(matches) != 1:
            raise LookupError(f"include: need one definition of {name}; got {len(matches)} of {part}")
        tree = matches[0]
    assert isinstance(tree, ast.stmt)
    return tree


def code_of(path: Path, name: str) -> str:
    """Return the source of a function or class, without its docstring and its indentation."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    node = find_definition(ast.parse(source), name)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    kept = range(first, (node.end_lineno or first) + 1)
    body = getattr(node, "body", [])
    if body and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
        docstring = range(body[0].lineno, body[0].end_lineno + 1)
        kept_lines = [lines[number - 1] for number in kept if number not in docstring]
    else:
        kept_lines = [lines[number - 1] for number in kept]
    return textwrap.dedent("\n".join(kept_lines)).rstrip() + "\n"


def include(match: re.Match[str]) -> str:
    """Return the marked block with what it includes."""
    path = ROOT / match["path"]
    content = code_of(path, match["name"]) if match["kind"] == "code" else path.read_text(encoding="utf-8")
    return f"{match['mark']}```{match['language']}\n{content.rstrip()}\n```"


def pages() -> dict[Path, str]:
    """Return every page that is generated or includes something, as it should be."""
    wanted = {ROOT / "spec" / "invariants.md": invariants_page()}
    for path in sorted((ROOT / "spec").rglob("*.md")):
        if path not in wanted:
            wanted[path] = INCLUDE.sub(include, path.read_text(encoding="utf-8"))
    return wanted


def show_drift(path: Path, found: str, wanted: str) -> None:
    """Print how a page differs from what it should be."""
    name = path.relative_to(ROOT).as_posix()
    lines = difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), name, f"{name} (generated)")
    sys.stdout.writelines(lines)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with --check only print what has drifted."""
    if arguments not in ([], ["--check"]):
        print(f"generate_docs: need no argument or --check; got {arguments}.", file=sys.stderr)
        return 2
    has_drifted = False
    for path, wanted in pages().items():
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found == wanted:
            continue
        has_drifted = True
        if arguments:
            show_drift(path, found, wanted)
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return int(has_drifted and bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
