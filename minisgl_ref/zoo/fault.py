"""A fault: a deliberate change of source, and an engine loaded with it, or from changed sources.

The change is made to a copy in memory: every module of the engine is imported afresh under a private
import, the named modules from changed source, and `sys.modules` is put back. The real engine is not
touched, and engines with different faults may run side by side. Specification, kernels and
`checks.py` are shared, so errors and levels are the same classes on both sides.

A fault whose anchor no longer occurs exactly once is refused: the source has moved on.
Nothing here knows a particular fault, or judges one. Chapter: spec/deviations.md
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from minisgl_ref.checks import CheckLevel
from minisgl_spec.errors import ContractError

if TYPE_CHECKING:
    from minisgl_ref.kvcache.base import PrefixCache
    from minisgl_ref.testing import EngineUnderTest

PACKAGE = "minisgl_ref"
SHARED = ("minisgl_ref.checks",)
"""Modules of the engine that a faulty copy shares with the real one, unless the fault changes them."""

CACHE, ENGINE = "cache", "engine"
"""The levels a fault may be hunted at."""

BUG_ID = re.compile(r"\b(?:[A-Z]{2}-\d+|L\d+)\b")
"""An entry of the corpus of real bugs."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: in `module` the text `anchor`, which occurs exactly once, becomes `replacement`."""

    module: str
    anchor: str
    replacement: str

    @property
    def text(self) -> str:
        """The module, the lines that go and the lines that come."""
        gone = [f"- {line}" for line in self.anchor.splitlines()]
        come = [f"+ {line}" for line in self.replacement.splitlines()]
        return "\n".join([self.module, *gone, *come])


@dataclass(frozen=True, slots=True)
class Fault:
    """A deliberate bug.

    rule:     the invariant or contract that must name it first.
    undoes:   what it goes back to, for a reader: a deviation's number, entries of the corpus, or a family.
    sentence: what is wrong with it.
    level:    where it is hunted: a tree alone is quicker than an engine around it.
    is_exact: only the oracle's own decisions tell it from a right engine, so its target claims them.
    judges:   the judges that see it, each without the other two.
    why:      why fewer than two judges see it.
    """

    name: str
    edits: tuple[Edit, ...]
    rule: str
    undoes: str
    sentence: str
    level: str = ENGINE
    is_exact: bool = False
    judges: tuple[str, ...] = ()
    why: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """The modules it changes, each once."""
        return tuple(dict.fromkeys(edit.module for edit in self.edits))

    @property
    def bugs(self) -> tuple[str, ...]:
        """The entries of the corpus that it is modelled on."""
        return tuple(dict.fromkeys(BUG_ID.findall(self.undoes)))

    @property
    def change(self) -> str:
        """What is taken out and what is put in, as a person reads it."""
        return "\n".join(edit.text for edit in self.edits)


@dataclass(frozen=True)
class FaultyEngine:
    """The modules of an engine whose source was changed.

    is_exact: its targets claim the oracle's decisions.
    """

    modules: Mapping[str, ModuleType]
    is_exact: bool

    def module(self, name: str) -> Any:
        """Return the copy of a module of the engine, by its full name.

        Raises: ContractError if the engine's target does not load it.
        """
        if name not in self.modules:
            raise ContractError("module", "a module that was loaded with the fault", {"name": name})
        return self.modules[name]

    def make_engine_target(
        self,
        config: Mapping[str, Any],
        check_level: CheckLevel = CheckLevel.OFF,
        backend: str | None = None,
    ) -> EngineUnderTest:
        """Build a conformance target that has the change; its own checks are off unless asked for.

        Unless only they tell a fault, it does not claim the oracle's decisions: what finds it is a
        judge, not a comparison.
        """
        testing = self.module("minisgl_ref.testing")
        target: EngineUnderTest = testing.make_engine_target(config, check_level, backend)
        if not self.is_exact:
            target.capabilities = target.capabilities - {"exact"}
        return target

    def make_cache(self, config: Mapping[str, Any]) -> PrefixCache:
        """Build the prefix cache of a configuration, without an engine around it."""
        kinds = self.module("minisgl_ref.build").PREFIX_CACHES
        cache: PrefixCache = kinds[config.get("cache", "radix")](config["page_size"])
        return cache


@cache
def load(fault: Fault) -> FaultyEngine:
    """Return an engine that has `fault`; the same one each time.

    What the engine imports inside a function it finds in the real modules.

    Mutates: nothing that lasts; `sys.modules` and `sys.meta_path` while it imports.
    Raises:  ContractError if an anchor does not occur exactly once.
    """
    sources = {module: faulty_source(fault, module) for module in fault.places}
    return load_sources(sources, fault.is_exact)


def load_sources(sources: Mapping[str, str], is_exact: bool) -> FaultyEngine:
    """Return an engine with the modules named in `sources` from there; a new one each time.

    Mutates: nothing that lasts; `sys.modules` and `sys.meta_path` while it imports.
    Raises:  whatever the sources raise when they are imported.
    """
    shared = [name for name in SHARED if name not in sources]
    with _private_import(_Finder(sources), shared):
        importlib.import_module("minisgl_ref.testing")
        for module in sources:
            importlib.import_module(module)
        modules = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    return FaultyEngine(modules, is_exact)


def faulty_source(fault: Fault, module: str) -> str:
    """Return the source of a module with the fault's changes.

    Raises: ContractError if the module does not exist or an anchor does not occur exactly once.
    """
    source = source_of(module)
    for edit in fault.edits:
        if edit.module == module:
            count = source.count(edit.anchor)
            if count != 1:
                raise ContractError(
                    "load fault",
                    "an anchor that occurs exactly once",
                    {"fault": fault.name, "module": module, "count": count, "anchor": repr(edit.anchor)},
                    "The source has changed; bring the fault up to date.",
                )
            source = source.replace(edit.anchor, edit.replacement)
    return source


class _Loader(SourceFileLoader):
    """Loads a module from changed source; tracebacks show that source."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_source(self, fullname: str) -> str:
        """Return the changed source."""
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source; nothing is read from or written to a bytecode cache."""
        code: CodeType = compile(self._source, f"<faulty {fullname}>", "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    """Finds the changed modules; all others are found as usual."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a changed module."""
        if fullname not in self._sources:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._sources[fullname])
        return spec


@contextmanager
def _private_import(finder: MetaPathFinder, shared: Sequence[str]) -> Iterator[None]:
    """Hide the engine's modules but the shared ones, and put everything back at the end."""
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    sys.modules.update({name: real[name] for name in shared})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(real)


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def source_of(module: str) -> str:
    """Return the source of a module.

    Raises: ContractError if it does not exist or has none.
    """
    spec = importlib.util.find_spec(module)
    loader = None if spec is None else spec.loader
    source = loader.get_source(module) if isinstance(loader, SourceFileLoader) else None
    if source is None:
        raise ContractError("load fault", "a module with source", {"module": module})
    return source
