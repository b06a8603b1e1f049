"""Level `engine`: the runner submits, aborts and steps, and follows every request from outside.

Every reply is held to the model's own function, every request to one terminal reply; views, inner
events and execution records are judged where the target shows them. At the end the engine is left
alone until it rests, and the same program runs once more in another configuration: caching, chunks
and overlap may change no token.

The oracle, where the target claims its policy, takes the token that the target chose among those
the model permits: a tie is no disagreement.
Chapter: spec/04-requests.md to spec/07-overlap.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minisgl_conformance import boundary, targets
from minisgl_conformance import marks as situations
from minisgl_conformance.blame import timeless
from minisgl_conformance.content import Tape, judge_executions
from minisgl_conformance.runner import Finding, Runner, TargetRaised
from minisgl_conformance.targets import COMPARE, MakeTarget, target_config
from minisgl_conformance.variants import compare_variant, compared, judge_variant
from minisgl_spec import contracts, invariants
from minisgl_spec.errors import ContractError, Refusal, Violation
from minisgl_spec.messages import ABORT, GREEDY, LENGTH, STOP, Execution, Reply, Sampling
from minisgl_spec.numerics import digest_next_token
from minisgl_spec.requests import Config, Submission, clamped_max_tokens, pages_for, refusal_of
from minisgl_spec.scheduler import Scheduler
from minisgl_spec.shadow import ShadowMemory
from minisgl_spec.trace import Json, encode_float
from minisgl_spec.views import EngineView

LARGER_THAN_POOL = "larger_than_pool"
SKIPPED_NOT_CLAIMED = "not_claimed"
"""Why an operation was not run: the target does not claim it."""

STANDSTILL = 20
"""Steps in which a view stays as it is, after which an engine that is left alone will not come to rest."""


@dataclass
class RunnerRequest:
    """An accepted request as the runner follows it from outside."""

    submission: Submission
    max_tokens: int  # clamped
    op_idx: int
    tape: Tape
    outputs: list[int] = field(default_factory=list)
    is_aborted: bool = False
    has_ended: bool = False  # its terminal reply was delivered

    @property
    def uid(self) -> int:
        """The request's id."""
        return self.submission.uid

    @property
    def is_live(self) -> bool:
        """Whether a token or an abort may still come."""
        return not (self.is_aborted or self.has_ended)

    def reason_now(self, eos_ids: Sequence[int]) -> str | None:
        """Return why the request ends with its last output, or None."""
        stops = (
            self.submission.stop_ids if self.submission.ignore_eos else (*eos_ids, *self.submission.stop_ids)
        )
        if self.outputs[-1] in stops:
            return STOP
        return LENGTH if len(self.outputs) >= self.max_tokens else None


class EngineRunner(Runner):
    """One program of submit, abort, step and reset."""

    level = targets.ENGINE
    view_type = EngineView

    def __init__(
        self,
        make_target: MakeTarget,
        config: Mapping[str, Any],
        judges: Collection[str] = invariants.JUDGES,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(make_target, config, judges, origin)
        self.limits = Config.from_json(config)
        self.compares = compared(config.get(COMPARE, ""))
        self.shadow = ShadowMemory()
        self.requests: list[RunnerRequest] = []  # accepted, in order
        self.current: dict[int, RunnerRequest] = {}  # the last one of each uid
        self.aborting: dict[int, list[RunnerRequest]] = {}  # aborted, terminal reply to come
        self.admitted: set[int] = set()  # by the inner events
        self.inner: Sequence[Json] = ()  # of the last operation
        self.executed: Sequence[Execution] = ()  # in the last operation
        self.executions: list[tuple[int, Execution]] = []  # and in which operation each ran
        self.oracle = Scheduler(self.limits, self._oracles_token) if self.is_exact else None
        self.shows_events = targets.claims(self.target, targets.EVENTS)
        self.judges_content = (
            targets.claims(self.target, targets.EXECUTIONS) and invariants.CONTENT in self.judges
        )
        self.refuses = targets.claims(self.target, targets.REFUSALS)
        self.samples = targets.claims(self.target, targets.SAMPLING)
        self.plans = targets.claims(self.target, targets.LATE_WORK) and config.get("streams") == "simulated"
        self._replied: dict[int, int] = {}  # tokens of the step under way
        self._permitted: dict[tuple[tuple[int, ...], Sampling, int], tuple[int, ...]] = {}
        self.start()

    # -- operations --------------------------------------------------------------------------

    def _run(self, op: Json) -> Json:
        operations = {"submit": self._submit, "abort": self._abort, "step": self._step, "reset": self._reset}
        if op["op"] not in operations:
            raise ContractError("apply", f"an operation of {tuple(operations)}", {"op": repr(op["op"])})
        self.inner, self.executed = (), ()
        event = operations[op["op"]](op)
        if self.shows_events and op["op"] in ("abort", "step"):
            event["inner"] = list(self.inner)
        return event

    def _submit(self, op: Json) -> Json:
        submission = submission_of(op)
        may_be_refused, may_be_accepted = self._permitted_answers(submission)
        event: Json = {"event": "submit", "uid": submission.uid}
        if not self._may_send(submission, may_be_accepted):
            return {**event, "accepted": False, "skipped": SKIPPED_NOT_CLAIMED}
        refusal = boundary.refusal("submit", self._call("submit", submit, self.target, submission))
        event["accepted"] = refusal is None
        if refusal is not None:
            event |= _explain(refusal)
        if self.oracle is not None:
            expected = self.oracle.submit(submission)
            self._compare(f"submit of request {submission.uid}", _explain(refusal), _explain(expected))
        elif not (may_be_accepted if refusal is None else may_be_refused):
            self._hold_refusal("submit", submission.uid, refusal, is_mistake=refusal is None)
        if refusal is None:
            self._accept(submission)
        else:
            self._hold_unchanged()
        return event

    def _permitted_answers(self, submission: Submission) -> tuple[bool, bool]:
        """Say whether a submission may be refused, and whether it may be accepted.

        An engine may store one page more or less of a request than the definition: at that edge either is
        right. So it is for a uid that was given before: a batch in flight may hold it still.
        """
        last = self.current.get(submission.uid)
        if last is not None and last.is_live:
            return True, False
        reason = refusal_of(submission, self.limits)
        if reason is not None and reason.reason != LARGER_THAN_POOL:
            return True, False
        max_tokens = clamped_max_tokens(submission, self.limits)
        need = pages_for(len(submission.ids), max_tokens, self.limits.page_size)
        return need >= self.limits.num_pages or last is not None, need <= self.limits.num_pages + 1

    def _may_send(self, submission: Submission, may_be_accepted: bool) -> bool:
        """Say whether a submission is sent to the target at all, by what it claims."""
        if self.oracle is not None:
            return True
        last = self.current.get(submission.uid)
        is_used = last is not None and not last.is_live
        is_mistake = not may_be_accepted or refusal_of(submission, self.limits) is not None
        return (
            (self.refuses or not is_mistake)
            and (self.samples or submission.sampling == GREEDY)
            and not (is_used and self._may_be_held(submission.uid))
        )

    def _may_be_held(self, uid: int) -> bool:
        """Say whether an ended request's uid may still be in a batch: whoever shows no view may hold it."""
        if self.view is None:
            return True
        return any(part.uid == uid for part in (*self.view.requests, *self.view.in_flight))

    def _accept(self, submission: Submission) -> None:
        def permitted(ids: Sequence[int], output_idx: int) -> tuple[int, ...]:
            return self.permitted(tuple(ids), submission.sampling, output_idx)

        request = RunnerRequest(
            submission=submission,
            max_tokens=clamped_max_tokens(submission, self.limits),
            op_idx=len(self.ops) - 1,
            tape=Tape(self.shadow, submission.ids, permitted),
        )
        self.requests.append(request)
        self.current[submission.uid] = request

    def _abort(self, op: Json) -> Json:
        uid = op["uid"]
        request = self.current.get(uid)
        is_live = request is not None and request.is_live
        if self.oracle is None and not self.refuses and not is_live:
            return {"event": "abort", "uid": uid, "accepted": False, "skipped": SKIPPED_NOT_CLAIMED}
        refusal = boundary.refusal("abort", self._call("abort", self.target.abort, uid))
        self._take_inner()
        event: Json = {"event": "abort", "uid": uid, "accepted": refusal is None}
        if refusal is not None:
            event["reason"] = refusal.reason
        if self.oracle is not None:
            expected = self.oracle.abort(uid)
            self._compare(f"abort of request {uid}", _explain(refusal), _explain(expected))
            self._compare_inner()
        if self.oracle is not None or self.refuses:
            self._hold_refusal("abort", uid, refusal, not is_live)
        if refusal is None and request is not None:
            request.is_aborted = True
            self.aborting.setdefault(uid, []).append(request)
        elif refusal is not None:
            self._hold_unchanged()
        return event

    def _step(self, op: Json) -> Json:
        if self.plans:
            self._call("plan", self.target.plan, op.get("progress", []))
        answer = self._call("step", self.target.step)
        listed = self._call("step", list, answer) if isinstance(answer, Iterator) else answer
        replies = boundary.replies("step", listed)
        self._judge_executions()  # what the device did comes before what was told of it
        self._take_inner()
        self._replied = {reply.uid: reply.token for reply in replies if reply.token is not None}
        for reply in replies:
            self._take_reply(reply)
        if self.oracle is not None:
            outputs = self.oracle.step()
            self._compare("replies", replies, outputs.replies)
            self._compare_inner()
            self._compare("is_idle", self._call("is_idle", self.target.is_idle), self.oracle.is_idle())
        return {"event": "step", "replies": [asdict(reply) for reply in replies]}

    def _reset(self, op: Json) -> Json:
        if not targets.claims(self.target, targets.RESET):
            return {"event": "reset", "accepted": False, "skipped": SKIPPED_NOT_CLAIMED}
        _, need = self._attempt("reset", self.target.reset)
        if self.oracle is not None:
            try:
                self.oracle.reset()
                expected = True
            except ContractError:
                expected = False
            self._compare("reset accepted", need is None, expected)
        if need is not None:
            self._hold_unchanged()
        return {"event": "reset", "accepted": need is None}

    # -- replies -----------------------------------------------------------------------------

    def _take_reply(self, reply: Reply) -> None:
        aborted = self.aborting.get(reply.uid)
        if aborted and reply.finish_reason == ABORT and reply.token is None:
            aborted.pop(0).has_ended = True
            return
        request = self.current.get(reply.uid)
        if request is None or not request.is_live or reply.token is None:
            self._hold(contracts.replied_once, (reply.uid,), reply)
            return
        self._take_token(request, reply.token)
        expected = request.reason_now(self.limits.eos_ids)
        self._hold(
            contracts.ends_with_its_last_token, reply.uid, request.outputs, reply.finish_reason, expected
        )
        if reply.finish_reason == ABORT:
            self._hold(contracts.replied_once, (reply.uid,), reply)
        request.has_ended = reply.finish_reason is not None

    def _take_token(self, request: RunnerRequest, token: int) -> None:
        ids = (*request.submission.ids, *request.outputs)
        permitted = self.permitted(ids, request.submission.sampling, len(request.outputs))
        self._hold(contracts.tokens_are_the_models, request.uid, request.outputs, permitted, token)
        self._found += request.tape.hold_output(request.uid, len(request.outputs), token)
        request.outputs.append(token)

    def permitted(self, ids: tuple[int, ...], sampling: Sampling, output_idx: int) -> tuple[int, ...]:
        """Return the tokens that the model permits after `ids`; asked once."""
        key = (ids, sampling, output_idx)
        if key not in self._permitted:
            answer = self._call("next_token", self.target.next_token, ids, sampling, output_idx)
            tokens = boundary.wholes("next_token", answer)
            if self.is_exact and self.config.get("model", "digest") == "digest":
                digest = digest_next_token(ids, sampling, output_idx, self.limits.vocab_size)
                self._compare(f"the model after {ids}", digest in tokens, True)
            self._permitted[key] = tokens
        return self._permitted[key]

    def _oracles_token(self, ids: tuple[int, ...], sampling: Sampling, output_idx: int, uid: int) -> int:
        permitted = self.permitted(ids, sampling, output_idx)
        replied = self._replied.get(uid)
        return replied if replied is not None and replied in permitted else permitted[0]

    # -- judging -----------------------------------------------------------------------------

    def _judge_view(self) -> None:
        self._judge_executions()
        if self.view is None:
            return
        self._found += self._violations_of(self.view)
        if self.judges_content:
            content = invariants.ContentView(self.view.cache, self.view.requests, self.shadow)
            self._found += invariants.violations(content, self.judges)
        if self.events and self.events[-1]["event"] == "step":
            self.events[-1].update(_sizes(self.view))
            if invariants.OWNERSHIP in self.judges and self._call("is_idle", self.target.is_idle):
                self._hold(contracts.nothing_left_at_idle, self.view)
        if self.oracle is not None:
            self._compare("view", self.view, self.oracle.view())

    def _judge_executions(self) -> None:
        """Take what the device has run since the last call, and replay it."""
        if not targets.claims(self.target, targets.EXECUTIONS):
            return
        executed = self._call("executions", self.target.executions)
        if not self.is_exact:
            executed = boundary.pictures("executions", executed, Execution)
        if not executed:
            return
        self.executed = (*self.executed, *executed)
        self.executions += [(len(self.ops) - 1, execution) for execution in executed]
        if self.judges_content:
            tapes = {uid: request.tape for uid, request in self.current.items()}
            self._found += judge_executions(executed, tapes, self.shadow)

    def _take_inner(self) -> None:
        """Take the target's inner events, and hold them to one release per admission."""
        if not self.shows_events:
            return
        self.inner = boundary.events("last_event", self._call("last_event", self.target.last_event))
        if invariants.OWNERSHIP in self.judges:
            held: list[Json] = [{"do": "admit", "uid": uid} for uid in sorted(self.admitted)]
            self._hold(contracts.released_once, [*held, *self.inner])
        for event in self.inner:
            if event["do"] == "admit":
                self.admitted.add(event["uid"])
            elif event["do"] == "release":
                self.admitted.discard(event["uid"])

    def _compare_inner(self) -> None:
        if self.oracle is not None and self.shows_events:
            self._compare("inner events", list(self.inner), self.oracle.inner)

    def _hold_refusal(self, operation: str, uid: int, refusal: Refusal | None, is_mistake: bool) -> None:
        text = str(refusal) if refusal is not None else None
        self._hold(contracts.mistakes_are_refused, f"{operation} of request {uid}", text, is_mistake)

    def _mark(self, op: Json, event: Json, before: EngineView | None) -> None:
        situations.mark_engine(self, op, event, before)

    def _is_step(self, op: Json) -> bool:
        return bool(op["op"] == "step")

    # -- the end of a program ----------------------------------------------------------------

    def finish(self) -> Finding | None:
        """Let the engine come to rest, then compare with the program's variant.

        The steps it takes are operations of the program like any other.
        """
        still = 0
        for _ in range(self._bound()):
            if self.finding is not None or still == STANDSTILL or self._is_idle():
                break
            before = timeless(self.view)
            self.num_added += 1
            self.apply({"op": "step", "progress": []})
            still = still + 1 if before is not None and timeless(self.view) == before else 0
        if self.finding is None:
            self._judge_end(self.num_added)
        return self.finding

    def _judge_end(self, bound: int) -> None:
        self._found, self._disagreements = [], []
        unended = [r.uid for r in self.requests if not r.has_ended]
        self._hold(contracts.requests_finish, unended, bound)
        if not unended and not self._is_idle():
            fact = f"every request has ended, and after {bound} more steps the engine is not idle"
            self._found.append(Violation("requests_finish", fact))
        for key in self.compares:
            if not self._found:
                self._judge_against(key)
        if self._found and self.finding is None:
            self.finding = self._make_finding(self._found, None)

    def _judge_against(self, key: str) -> None:
        """Run one variant; if it differs, what it breaks by itself is named first."""
        try:
            self._found += compare_variant(self, key)
        except TargetRaised as raised:
            text = f"{type(raised.error).__name__}: {raised.error}"
            self._hold(contracts.steps_complete, f"{raised.operation}, compare={key},", text)
        if self._found:
            self.finding = judge_variant(self, key)

    def _is_idle(self) -> bool:
        try:
            return bool(self._call("is_idle", self.target.is_idle))
        except TargetRaised:
            return False

    def _bound(self) -> int:
        """Return more steps than the work that is left can take: each moves some request by a token."""
        work = sum(len(r.submission.ids) + r.max_tokens + 2 for r in self.requests if not r.has_ended)
        return 2 * work + 8

    def num_live(self) -> int:
        """Return how many requests have not had their terminal reply."""
        return sum(not request.has_ended for request in self.current.values())

    def tokens(self) -> dict[int, RunnerRequest]:
        """Return every accepted request by the index of the operation that submitted it."""
        return {request.op_idx: request for request in self.requests}

    def config_of_target(self) -> Json:
        """Return the configuration that the target was made from."""
        return target_config(self.config)


def submission_of(op: Json) -> Submission:
    """Read a submission from an operation."""
    return Submission(
        uid=op["uid"],
        ids=tuple(op["ids"]),
        max_tokens=op["max_tokens"],
        stop_ids=tuple(op.get("stop_ids", ())),
        ignore_eos=op.get("ignore_eos", False),
        sampling=Sampling(
            temperature=float(op.get("temperature", 0.0)),
            top_k=op.get("top_k", 0),
            top_p=float(op.get("top_p", 1.0)),
            seed=op.get("seed", 0),
        ),
    )


def submit(target: Any, submission: Submission) -> Refusal | None:
    """Submit to a target; an option that has its default is left out, so that the target's own is tried."""
    said = _options(submission)
    unsaid = _options(Submission(submission.uid, submission.ids, submission.max_tokens))
    options = {name: value for name, value in said.items() if value != unsaid[name]}
    refusal: Refusal | None = target.submit(submission.uid, submission.ids, submission.max_tokens, **options)
    return refusal


def _options(submission: Submission) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "seed")
    sampling = {name: getattr(submission.sampling, name) for name in names}
    return {"stop_ids": submission.stop_ids, "ignore_eos": submission.ignore_eos, **sampling}


def _explain(refusal: Refusal | None) -> Json:
    if refusal is None:
        return {}
    value = encode_float(refusal.value) if isinstance(refusal.value, float) else refusal.value
    return {"reason": refusal.reason, "value": value, "limit": refusal.limit}


def _sizes(view: EngineView) -> Json:
    num_waiting = sum(request.row is None for request in view.requests)
    return {
        "free_pages": len(view.free_pages),
        "evictable_size": view.cache.evictable_size,
        "protected_size": view.cache.protected_size,
        "num_waiting": num_waiting,
        "num_running": len(view.requests) - num_waiting,
    }
