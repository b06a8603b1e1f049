"""Stories for people, replayed: the oracle still answers what the file says.

Accept a change with `pytest tests/transcripts --rewrite`, and read the diff.
Guide: tests/README.md
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .player import play

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_the_oracle_answers_what_the_transcript_says(path: Path, rewrite: bool) -> None:
    """Each command of a transcript is answered as written. (tests/README.md)"""
    told = path.read_text(encoding="utf-8")

    played = play(told)

    if rewrite:
        path.write_text(played, encoding="utf-8")
    else:
        assert played == told
