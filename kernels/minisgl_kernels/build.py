"""Compile a kernel's C at first use and load it through cffi, without Python headers (ABI mode).

A library is a pure function of its source, the flags, the compiler's version and the CPU's features,
so its file name is the hash of these (headers included), and a cache directory outside the tree is shared by
every process: a compiler writes to a name of its own and an atomic rename publishes it, so workers that
start together cannot see half a file. All kernels share one pool of threads (`pool.c`), loaded before them;
a compiler without POSIX threads builds it for one thread and says so. The `.c` file includes its `.cdef`, so
both always agree.

This file never writes into the source tree and never compiles at import.
Environment: CC names a compiler; XDG_CACHE_HOME moves the cache (~/.cache/minisgl-ref otherwise).
Chapter: kernels/README.md
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisgl_spec.errors import BackendUnavailable

PACKAGE = Path(__file__).resolve().parent
COMPILERS = ("gcc", "clang")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-sign-conversion")
# A product may be fused into the sum it goes to; nothing may be reordered.
LIBRARIES = ("-lm",) if sys.platform != "darwin" else ("-lm", "-Wl,-undefined,dynamic_lookup")
FAST = ("-O3", "-fPIC", "-shared", "-ffp-contract=fast", "-I", str(PACKAGE))
POOL, THREADS, ONE_THREAD = "pool.h", ("-pthread",), ("-DONE_THREAD",)
NATIVE = {"x86_64": "-march=native", "aarch64": "-mcpu=native", "arm64": "-mcpu=native"}
BACKEND = "c"


@dataclass(frozen=True)
class Library:
    """A loaded kernel library: cffi's `ffi` for its types, `lib` for its functions."""

    ffi: Any
    lib: Any


@dataclass(frozen=True)
class Compiler:
    """A C compiler: the command and the first line of its version."""

    command: tuple[str, ...]
    version: str


@functools.cache
def load(name: str) -> Library:
    """Compile (unless cached) and load the library of one kernel folder.

    Args:
        name: a folder with NAME.c and NAME.cdef.

    Raises: BackendUnavailable, in words, without a compiler, without cffi or without a writable cache.
    """
    try:
        import cffi
    except ImportError:
        raise BackendUnavailable(BACKEND, "cffi is not installed; install minisgl-ref[engine]") from None
    ffi = cffi.FFI()
    ffi.cdef((PACKAGE / name / f"{name}.cdef").read_text())
    source = PACKAGE / name / f"{name}.c"
    if POOL in source.read_text():
        load_pool()
    path = compile_c([source], [*WARNINGS, *FAST, *native_flags()], suffix=".so", libraries=LIBRARIES)
    return Library(ffi, ffi.dlopen(str(path)))


@functools.cache
def load_pool() -> Library:
    """The pool of threads: its function is found by every library loaded afterwards, and it stays to the end.

    Raises: BackendUnavailable if it compiles neither with threads nor without.
    """
    import cffi

    flags = [
        *WARNINGS,
        "-O3",
        "-fPIC",
        "-shared",
    ]  # not where we lie: a copy of this package has the same pool
    try:
        path = compile_c([PACKAGE / "pool.c"], [*flags, *THREADS], suffix=".so")
    except BackendUnavailable as error:
        path = compile_c([PACKAGE / "pool.c"], [*flags, *ONE_THREAD], suffix=".so")
        reason = error.reason.splitlines()[-1]
        warnings.warn(f"the C kernels run on one thread: no POSIX threads ({reason})", stacklevel=2)
    ffi = cffi.FFI()
    return Library(ffi, ffi.dlopen(str(path), os.RTLD_NOW | os.RTLD_GLOBAL | getattr(os, "RTLD_NODELETE", 0)))


def compile_c(
    sources: Sequence[Path], flags: Sequence[str], suffix: str, libraries: Sequence[str] = ()
) -> Path:
    """Compile C sources into the cache and return the file; a file that is there already is used as it is.

    Raises: BackendUnavailable with the compiler's own words if it fails.
    """
    beside = [path for source in sources for path in (source.with_suffix(".cdef"),) if path.exists()]
    headers = sorted(PACKAGE.glob("*.h"))
    return compile_sources(BACKEND, find_compiler(), sources, flags, suffix, libraries, [*beside, *headers])


def compile_sources(
    backend: str,
    compiler: Compiler,
    sources: Sequence[Path],
    flags: Sequence[str],
    suffix: str,
    libraries: Sequence[str] = (),
    also_read: Sequence[Path] = (),
) -> Path:
    """Run a compiler into the cache, unless the file is there already.

    Args:
        also_read: files that the sources include; they are part of the file's name.

    Raises: BackendUnavailable with the compiler's own words if it fails.
    """
    target = cache_dir() / f"{sources[0].stem}-{_key([*sources, *also_read], flags, compiler)}{suffix}"
    if target.exists():
        return target
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.")
    os.close(handle)
    command = [*compiler.command, *flags, "-o", partial, *map(str, sources), *libraries]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BackendUnavailable(backend, f"`{shlex.join(command)}` failed: {done.stderr.strip()}")
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


@functools.cache
def find_compiler() -> Compiler:
    """The compiler that CC names, else the first of gcc and clang on the PATH.

    Raises: BackendUnavailable if there is none or it does not tell its version.
    """
    named = os.environ.get("CC", "")
    candidates = [shlex.split(named)] if named.strip() else [[command] for command in COMPILERS]
    for command in candidates:
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Compiler(tuple(command), done.stdout.splitlines()[0] if done.stdout else "unknown")
    tried = ", ".join(command[0] for command in candidates)
    raise BackendUnavailable(BACKEND, f"no C compiler (tried {tried}); install one, or name one in CC")


def cache_dir() -> Path:
    """The directory of compiled kernels, made if need be.

    Raises: BackendUnavailable if it cannot be made or written.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        path = (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "minisgl-ref"
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise BackendUnavailable(BACKEND, f"no cache directory: {error}. Set XDG_CACHE_HOME") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise BackendUnavailable(BACKEND, f"cannot write to {path}. Set XDG_CACHE_HOME")
    return path


def native_flags() -> tuple[str, ...]:
    """The flag that compiles for this very CPU; none on an architecture we do not know."""
    flag = NATIVE.get(platform.machine())
    return (flag,) if flag else ()


@functools.cache
def cpu_features() -> str:
    """What distinguishes this CPU from another that shares the cache: its architecture and features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = [line for line in lines if line.lower().startswith(("flags", "features", "model name"))]
    return f"{platform.machine()} {platform.processor()} {' '.join(sorted(set(features)))}"


def _key(files: Sequence[Path], flags: Sequence[str], compiler: Compiler) -> str:
    digest = hashlib.sha256()
    words = [*compiler.command, compiler.version, *flags, cpu_features()]
    for part in [*(path.read_bytes() for path in files), *(word.encode() for word in words)]:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]
