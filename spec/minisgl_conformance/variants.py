"""Variants: the same program in another configuration, which may change no token of any request.

`cache` switches the cache off (or on), `token_budget` computes prompts whole (or token by token),
`overlap` takes the other loop. Streams are inline, and nothing but the replies is looked at, unless
something differs: then the variant is judged by itself, and what it breaks is named first.

Of a request that was aborted in either run the shorter output must begin the longer one. Where the
model permits two tokens that tie, runs may part.
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minisgl_conformance import boundary
from minisgl_conformance.runner import Finding, TargetRaised, run_program
from minisgl_conformance.targets import UNJUDGED
from minisgl_spec import contracts
from minisgl_spec.errors import ContractError, Violation
from minisgl_spec.messages import Reply
from minisgl_spec.trace import Json, Program

if TYPE_CHECKING:
    from minisgl_conformance.engine_runner import EngineRunner, RunnerRequest

BUDGET_WHOLE, BUDGET_CHUNKS = 4096, 1
"""Prefill tokens per step: every prompt whole, or one token at a time."""

VARIANTS = ("cache", "token_budget", "overlap")
ALL_SHARE = 8
"""One program in so many is compared with all of its variants, others with one that is drawn."""

_CONTRACTS: dict[str, Callable[..., Iterator[str]]] = {
    "cache": contracts.caching_changes_no_token,
    "token_budget": contracts.chunking_changes_no_token,
    "overlap": contracts.overlap_changes_no_token,
}


@dataclass
class VariantRequest:
    """What a request of the variant got."""

    outputs: list[int] = field(default_factory=list)
    is_aborted: bool = False
    has_ended: bool = False


def compared(value: str) -> tuple[str, ...]:
    """Return the variants that a configuration's `compare` names.

    Raises: ContractError naming one that there is not.
    """
    keys = tuple(value.split(",")) if value else ()
    for key in keys:
        if key not in VARIANTS:
            raise ContractError("compare", f"variants of {VARIANTS}", {"compare": repr(key)})
    return keys


def variant_of(config: Json, key: str) -> tuple[Json, bool]:
    """Return the configuration of a variant, and whether the variant is the contract's plain side."""
    inline = {**config, "streams": "inline"}
    if key == "cache":
        is_plain = config.get("cache", "radix") != "naive"
        return {**inline, "cache": "naive" if is_plain else "radix"}, is_plain
    if key == "token_budget":
        is_plain = config["token_budget"] < config["max_seq_len"]
        return {**inline, "token_budget": BUDGET_WHOLE if is_plain else BUDGET_CHUNKS}, is_plain
    return {**inline, "overlap": not config["overlap"]}, bool(config["overlap"])


def compare_variant(runner: EngineRunner, key: str) -> Iterator[Violation]:
    """Run the runner's program in another configuration and hold both runs to the same tokens."""
    config, is_plain = variant_of(runner.config_of_target(), key)
    varied = _run_variant(runner, config)
    promise = _CONTRACTS[key]
    for op_idx, request in runner.tokens().items():
        other = varied.get(op_idx)
        if other is None:
            continue
        ours, theirs = _comparable(runner, request, other)
        pair = (ours, theirs) if is_plain else (theirs, ours)
        for fact in promise(request.uid, *pair):
            yield Violation(promise.__name__, fact)


def judge_variant(runner: EngineRunner, key: str) -> Finding | None:
    """Run the variant like any program; return what it breaks by itself."""
    config, _ = variant_of(runner.config_of_target(), key)
    program = Program(runner.level, config, tuple(runner.given_ops()), runner.origin)
    return run_program(runner.make_target, program, runner.judges).finding


def _comparable(
    runner: EngineRunner, request: RunnerRequest, other: VariantRequest
) -> tuple[Sequence[int], Sequence[int]]:
    """Return both outputs as far as they have to agree."""
    ours, theirs = request.outputs, other.outputs
    if request.is_aborted or other.is_aborted:
        shared = min(len(ours), len(theirs))
        ours, theirs = ours[:shared], theirs[:shared]
    for idx, (one, another) in enumerate(zip(ours, theirs, strict=False)):
        if one != another:
            ids = (*request.submission.ids, *ours[:idx])
            ties = runner.permitted(ids, request.submission.sampling, idx)
            if one in ties and another in ties:
                return ours[:idx], theirs[:idx]
            break
    return ours, theirs


def _run_variant(runner: EngineRunner, config: Json) -> dict[int, VariantRequest]:
    """Run the operations that were accepted, without judging; return what each request got, by operation."""
    from minisgl_conformance.engine_runner import submission_of, submit

    target = _guard("make_target", lambda: runner.make_target({**config, UNJUDGED: True}))
    by_op: dict[int, VariantRequest] = {}
    current: dict[int, VariantRequest] = {}
    for op_idx, op in enumerate(runner.ops):
        if runner.events[op_idx].get("accepted") is False:
            continue  # a uid that was refused because it was live may have ended there
        if op["op"] == "submit":
            submission = submission_of(op)
            if _guard("submit", lambda s=submission: submit(target, s)) is None:
                by_op[op_idx] = current[submission.uid] = VariantRequest()
        elif op["op"] == "abort":
            if _guard("abort", lambda uid=op["uid"]: target.abort(uid)) is None and op["uid"] in current:
                current[op["uid"]].is_aborted = True
        elif op["op"] == "step":
            _take(current, _replies(target))
    for _ in range(_bound(runner)):
        if _guard("is_idle", target.is_idle):
            break
        _take(current, _replies(target))
    return by_op


def _replies(target: Any) -> Sequence[Reply]:
    return boundary.replies("step", _guard("step", lambda: list(target.step())))


def _take(current: dict[int, VariantRequest], replies: Sequence[Reply]) -> None:
    for reply in replies:
        request = current.get(reply.uid)
        if request is not None and reply.token is not None and not request.is_aborted:
            request.outputs.append(reply.token)


def _bound(runner: EngineRunner) -> int:
    return 2 * sum(len(r.submission.ids) + r.max_tokens + 2 for r in runner.requests) + 8


def _guard(operation: str, function: Callable[..., Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise TargetRaised(operation, error) from error
