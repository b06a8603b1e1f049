"""Mutants: the engine's modules with one small change each, and which changes are none.

Left out, by rules and not one by one, because they change no behaviour or only words:

- annotations, and what stands under `if TYPE_CHECKING:`;
- what a `raise` says, and functions that only raise (annotated `NoReturn`);
- the engine's own checks: an `if` on the check level with what it guards, and the private methods and
  attributes that nothing but such code uses. They are off, so that it is the suite that judges;
- an exchange of `==` and `is`;
- a change that Python refuses to compile, or after which the module means the same.

Docstrings and other texts are never changed.

Nothing here runs an engine.
Guide: tests/README.md
"""

from __future__ import annotations

import ast
import random
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from minisgl_conformance.adapters import zoo
from minisgl_conformance.mutation.operators import OPERATORS

CHECK_LEVELS = {"level", "check_level", "_is_full"}
"""Attributes that say how much the engine checks of itself."""

IDENTITY = ("_Eq_Is", "_Is_Eq", "_NotEq_IsNot", "_IsNot_NotEq")
"""Operators that exchange equality and identity: which equal numbers are one object is Python's business."""

Position = tuple[int, int]  # line, column


@dataclass(frozen=True)
class Place:
    """Where an operator can change a module; `occurrence` counts its places there."""

    module: str
    operator: Any
    occurrence: int
    start: Position
    end: Position


@dataclass(frozen=True, order=True)
class Key:
    """What a mutant is called, whatever lines move around it.

    line:  as it is, without indentation; several are joined.
    to:    what it becomes.
    nth:   of such lines in the function, from 0.
    """

    module: str
    function: str
    line: str
    to: str
    nth: int = 0

    def __str__(self) -> str:
        nth = f" ({self.nth + 1})" if self.nth else ""
        return f"{self.module} {self.function}{nth}: {self.line}  ->  {self.to}"


@dataclass(frozen=True)
class Mutant:
    """One changed module."""

    key: Key
    source: str

    @property
    def module(self) -> str:
        """The module that is changed."""
        return self.key.module


def mutants(modules: Sequence[str], seed: int, count: int | None = None) -> Iterator[Mutant]:
    """Yield mutants in an order that the seed draws, each once: `count` of them, or all."""
    places = [place for module in modules for place in places_of(module)]
    random.Random(seed).shuffle(places)
    seen: set[str] = set()
    for place in places:
        if len(seen) == count:
            return
        mutant = mutant_at(place)
        if mutant is not None and mutant.source not in seen:
            seen.add(mutant.source)
            yield mutant


def places_of(module: str) -> Iterator[Place]:
    """Yield the places of a module where a change is a change of behaviour."""
    source = _source_of(module)
    nodes = list(ast_nodes(get_ast(source)))
    left_out = [_span(node) for node in no_behaviour(ast.parse(source))]
    for operator in _operators():
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start and end <= last for first, last in left_out):
                yield Place(module, operator, occurrence, start, end)


def mutant_at(place: Place) -> Mutant | None:
    """Change a module; None if the change does not compile, or the module means the same."""
    source = _source_of(place.module)
    changed = mutate_code(source, place.operator, place.occurrence)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            is_same = changed is None or ast.dump(ast.parse(changed)) == _dump(place.module)
            compile(changed or "", place.module, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return None if is_same else Mutant(_key_of(place, source, changed), changed)


def has_place(key: Key) -> bool:
    """Say whether the line that a key names is still in its function, as often as it must be."""
    return _joined(_lines_of(key.module, key.function)).count(key.line) > key.nth


def no_behaviour(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the parts of a module that its behaviour does not depend on; see the module's docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
            if ast.unparse(node.returns) == "NoReturn":
                yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (*node.exc.args, *(keyword.value for keyword in node.exc.keywords))
        elif isinstance(node, ast.ClassDef):
            yield from _checks(node)


def _checks(body: ast.ClassDef) -> list[ast.AST]:
    """Return the checks of a class: guarded by the check level, or used by nothing but checks."""
    found: list[ast.AST] = [node for node in ast.walk(body) if _is_guarded(node)]
    reads = _attributes(body)
    while True:
        inside = sum((_attributes(node) for node in found), Counter[str]())
        names = {name for name, count in inside.items() if count >= reads[name] and _is_private(name)}
        more = [node for node in (*_definitions(body, names), *_hollow(body, found)) if node not in found]
        if not more:
            return found
        found += more


def _is_private(name: str) -> bool:
    """Say whether nobody but the engine's own checks uses a name outside its class."""
    return name.startswith(("_", "check_")) or name in CHECK_LEVELS


def _is_guarded(node: ast.AST) -> bool:
    """Say whether a statement is an `if` on the check level, or on that first, and nothing else."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    is_and = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
    first = node.test.values[0] if is_and and isinstance(node.test, ast.BoolOp) else node.test
    return _attributes(first).keys() <= {*CHECK_LEVELS, "FULL", "LOCAL"} and bool(_attributes(first))


def _definitions(body: ast.ClassDef, names: set[str]) -> Iterator[ast.AST]:
    """Yield the methods of these names, and the statements that set attributes of these names."""
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            yield node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(target, ast.Attribute) and target.attr in names for target in targets):
                yield node


def _hollow(body: ast.ClassDef, found: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the methods that do nothing but check, and the statements that call them."""
    hollow = {
        method.name: method
        for method in body.body
        if isinstance(method, ast.FunctionDef)
        and all(part in found for part in method.body[ast.get_docstring(method) is not None :])
        and len(method.body) > (ast.get_docstring(method) is not None)
    }
    yield from hollow.values()
    for node in ast.walk(body):
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call and set(_attributes(node)) & hollow.keys():
            yield node


def _attributes(tree: ast.AST) -> Counter[str]:
    """Count the attributes that are read."""
    return Counter(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def _span(node: Any) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _key_of(place: Place, source: str, changed: str) -> Key:
    old, new = source.splitlines(), changed.splitlines()
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    behind = 0
    while behind < min(len(old), len(new)) - same and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    line, to = (_joined(lines[same : len(lines) - behind]) for lines in (old, new))
    function, start = function_at(place.module, place.start[0])
    nth = [_joined([text]) for text in old[start - 1 : same]].count(line)
    return Key(place.module, function, line, to, nth)


def _joined(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def function_at(module: str, line: int) -> tuple[str, int]:
    """Return the qualified name of the innermost function or class around a line, and where it begins."""
    name, start = "", 1
    for qualified, first, last in _functions(module):
        if first <= line <= last:
            name, start = qualified, first
    return name, start


@cache
def _functions(module: str) -> list[tuple[str, int, int]]:
    """Return the functions and classes of a module, outer ones first, with their first and last lines."""
    found: list[tuple[str, int, int]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                found.append((f"{prefix}{child.name}", first, child.end_lineno or first))
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(_source_of(module)), "")
    return found


def _lines_of(module: str, function: str) -> list[str]:
    lines = _source_of(module).splitlines()
    spans = [(first, last) for name, first, last in _functions(module) if name == function]
    first, last = spans[0] if spans else (1, 0 if function else len(lines))
    return lines[first - 1 : last]


@cache
def _operators() -> tuple[Any, ...]:
    """Return Cosmic Ray's operators that ask for no arguments, and ours."""
    names = [name for name in plugins.operator_names() if not name.endswith(IDENTITY)]
    stock = [plugins.get_operator(name) for name in names]
    return tuple(operator() for operator in (*(one for one in stock if not one.arguments()), *OPERATORS))


@cache
def _source_of(module: str) -> str:
    return zoo.source_of(module)


@cache
def _dump(module: str) -> str:
    return ast.dump(ast.parse(_source_of(module)))
