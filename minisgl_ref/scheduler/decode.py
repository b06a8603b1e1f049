"""Decode: the requests whose prompt has been launched whole, in order of admission.

A request joins when its last prompt token is launched, before its first output is known, so the
overlap loop can launch its next step at once; it leaves when it has had its terminal reply.

Nothing here allocates or releases.
Chapter: spec/06-decode-and-release.md
"""

from __future__ import annotations

from minisgl_ref.core import Req


class DecodeManager:
    """The generating requests."""

    def __init__(self) -> None:
        self.running: dict[int, Req] = {}  # by uid, in order of admission

    def add(self, req: Req) -> None:
        """Let a request generate; admission and the end of prefill come in the same order."""
        self.running[req.uid] = req

    def remove(self, req: Req) -> None:
        """Stop a request, if it is here."""
        self.running.pop(req.uid, None)

    def schedule(self) -> list[Req]:
        """Return the requests of the next decode batch: those with a token left to generate."""
        return [req for req in self.running.values() if req.can_decode]
