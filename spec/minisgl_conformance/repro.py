"""Reproductions: a finding as a script that needs the target alone, and as a test to keep.

The script makes the calls that the runner made and compares what came of the last one with what was
seen: it fails as long as the target does the same, and passes once it does anything else. The test
runs the program under all judges, so it passes only when the target is right.

Nothing here judges.
Chapter: spec/README.md
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from minisgl_conformance import targets
from minisgl_conformance.rules import sentence_of
from minisgl_conformance.runner import Finding, Runner, make_runner
from minisgl_conformance.targets import MakeTarget, target_config
from minisgl_spec.trace import Json

_CHECK = """found = sha256(repr(seen).encode()).hexdigest()[:16]
assert found != {fingerprint!r}, {fact!r}
print("the target does something else now:", seen)
"""

_TEST = '''"""{rule}: {sentence}

Found with {origin}.
"""

from minisgl_conformance import report, run_program
from minisgl_spec.trace import Program

{target}

PROGRAM = Program(
    {level!r},
    {config!r},
    [
{ops}
    ],
)


def test_{rule}() -> None:
    """Used to break it: {fact}"""
    finding = run_program(make_target, PROGRAM).finding

    assert finding is None, report(finding)
'''


def write_reproductions(make_target: MakeTarget, finding: Finding, folder: Path) -> tuple[Path, Path]:
    """Write `repro_<rule>.py` and `test_<rule>.py` into a folder; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    script, test = (folder / f"{kind}_{finding.rule}.py" for kind in ("repro", "test"))
    script.write_text(repro_script(make_target, finding), encoding="utf-8")
    test.write_text(repro_test(make_target, finding), encoding="utf-8")
    return script, test


def repro_script(make_target: MakeTarget, finding: Finding) -> str:
    """Return a script that fails the way the finding does."""
    runner = _replay(make_target, finding)
    config = target_config(finding.program.config)
    head = f'"""{finding.rule}: {sentence_of(finding.rule)}"""\n\nfrom hashlib import sha256\n\n'
    calls = [f"target = make_target({config!r})", *_calls(runner)]
    body = "\n".join([_import_of(make_target), "", *calls, ""])
    fact = f"{finding.rule}: {finding.fact}"
    return head + body + _CHECK.format(fingerprint=_fingerprint(make_target, calls), fact=fact)


def repro_test(make_target: MakeTarget, finding: Finding) -> str:
    """Return a test that passes when the program breaks no rule any more."""
    program = finding.program
    origin = " ".join(f"{name}={value}" for name, value in program.origin.items())
    return _TEST.format(
        rule=finding.rule,
        sentence=sentence_of(finding.rule),
        origin=origin or "a program of somebody's own",
        target=_import_of(make_target),
        level=program.level,
        config=program.config,
        ops="\n".join(f"        {op!r}," for op in program.ops),
        fact=finding.fact.replace("\\", "\\\\").replace('"', "'"),
    )


def _replay(make_target: MakeTarget, finding: Finding) -> Runner:
    program = finding.program
    runner = make_runner(program.level, make_target, program.config)
    for op in program.ops:
        if runner.apply(op) is not None:
            return runner
    runner.finish()
    return runner


def _fingerprint(make_target: MakeTarget, calls: list[str]) -> str:
    """Make the calls here; return the fingerprint of what was seen, or of the exception that ends them."""
    names: dict[str, Any] = {"make_target": make_target}
    try:
        exec("\n".join(calls), names)
    except Exception as error:
        names["seen"] = type(error).__name__
    return sha256(repr(names["seen"]).encode()).hexdigest()[:16]


def _import_of(make_target: MakeTarget) -> str:
    """Return the lines that import the target: a function or class by its name, an object by its repr."""
    name = getattr(make_target, "__qualname__", None)
    if name is not None:
        return f"from {make_target.__module__} import {name} as make_target"
    kind = type(make_target)
    return f"from {kind.__module__} import {kind.__qualname__}\n\nmake_target = {make_target!r}"


def _calls(runner: Runner) -> Iterator[str]:
    """Yield one line per call, runs of steps as a loop; the last ones say what was seen."""
    lines = [_call(runner, idx, op) for idx, op in enumerate(runner.ops)]
    lines = [line for line in lines if line]
    start = 0
    while start < len(lines) - 1:
        end = start
        while end < len(lines) - 1 and lines[end] == lines[start]:
            end += 1
        loop = f"for _ in range({end - start}):\n    {lines[start]}"
        yield lines[start] if end - start == 1 else loop
        start = end
    shown = [name for name in (targets.VIEW, targets.EXECUTIONS) if targets.claims(runner.target, name)]
    views = "".join(f", target.{name}()" for name in shown)
    yield f"answer = {_plain(lines[-1])}" if lines else "answer = None"
    yield f"seen = answer{views}"


def _plain(line: str) -> str:
    """Return a call whose answer prints the same each time: without the handle, which prints its address."""
    call = line.partition(" = ")[2] or line
    for name, handle, rest in (("match_prefix", "[0]", "[1]"), ("insert_prefix", "[1]", "[0]")):
        if call.startswith(f"target.{name}("):
            return call.removesuffix(handle) + rest
    return call


def _call(runner: Runner, idx: int, op: Json) -> str:
    """Return the call that an operation came to, or "" if it was not made."""
    event = runner.events[idx]
    if "skipped" in event:
        return ""
    calls = {targets.CACHE: _cache_call, targets.MANAGER: _manager_call, targets.ENGINE: _engine_call}
    return calls[runner.level](runner, idx, op)


def _cache_call(runner: Runner, idx: int, op: Json) -> str:
    name, event = op["op"], runner.events[idx]
    if name == "match":
        return f"h{event.get('handle', 'x')} = target.match_prefix({tuple(op['ids'])})[0]"
    if name == "insert":
        slots = getattr(runner, "given_slots", {})[idx]
        return f"h{event.get('handle', 'x')} = target.insert_prefix({tuple(op['ids'])}, {tuple(slots)})[1]"
    if name in ("lock", "unlock"):
        return f"target.{name}(h{op['handle']})"
    return f"target.evict({op['size']})" if name == "evict" else "target.reset()"


def _manager_call(runner: Runner, idx: int, op: Json) -> str:
    words = {"start": f", {tuple(op.get('ids', ()))}", "extend": f", {op.get('num_tokens')}"}
    return f"target.{op['op']}({op['uid']}{words.get(op['op'], '')})"


def _engine_call(runner: Runner, idx: int, op: Json) -> str:
    name = op["op"]
    if name == "submit":
        options = {key: value for key, value in op.items() if key not in ("op", "uid", "ids", "max_tokens")}
        words = "".join(f", {key}={_value(value)}" for key, value in options.items())
        return f"target.submit({op['uid']}, {tuple(op['ids'])}, {op['max_tokens']}{words})"
    if name == "step":
        plans = getattr(runner, "plans", False)
        plan = f"target.plan({op.get('progress', [])}) or " if plans else ""
        return f"{plan}target.step()"
    return f"target.abort({op['uid']})" if name == "abort" else "target.reset()"


def _value(value: Any) -> str:
    return f"float({value!r})" if value in ("nan", "inf", "-inf") else repr(value)
