"""Run every C kernel under AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m minisgl_kernels.sanitize

The kernels and `selftest.c` become one program, run in a process of its own (Python itself cannot load a
library built for ASan). It runs twice: once as it is, which must pass, and once with a deliberate read past
the end of a key, which must be stopped: a sanitizer that misses that one watches nothing.
Prints one line per run. Exit code 0 if both go as they must, 1 if not, 2 if there is no such compiler.

This file never imports torch or loads a kernel into Python.
Chapter: kernels/README.md
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from minisgl_kernels.build import PACKAGE, WARNINGS, compile_c
from minisgl_spec.errors import BackendUnavailable

KERNELS = ("compare_key", "store_kv", "gather_kv")
SANITIZERS = "-fsanitize=address,undefined"
FLAGS = ("-O1", "-g", SANITIZERS, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def main() -> int:
    """Build, run both ways, say what happened."""
    try:
        program = compile_c(sources(), [*WARNINGS, *FLAGS], suffix="")
    except BackendUnavailable as error:
        _say(str(error))
        return 2
    program.chmod(0o700)
    clean, watched = _run(program), _run(program, "overflow")
    _say(clean.stdout.strip() or clean.stderr.strip())
    stopped = watched.returncode != 0 and "AddressSanitizer" in watched.stderr
    caught = "stopped, as it must be" if stopped else f"NOT stopped: {watched.stdout.strip()}"
    _say(f"a deliberate read past the end: {caught}")
    return 0 if clean.returncode == 0 and stopped else 1


def sources() -> list[Path]:
    """The self-test and every kernel's C."""
    return [PACKAGE / "selftest.c", *(PACKAGE / name / f"{name}.c" for name in KERNELS)]


def _run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT}
    command = [str(program), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
