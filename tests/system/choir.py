"""The clients of tests/system/programs/choir.py, seen from outside of the machine on which they run."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.container import Container

ANSWER_SECONDS = 90.0
"""When a choir that does not answer is a failure."""


class Findings(NamedTuple):
    """What the clients have noticed; see the program."""

    sent: int
    received: int
    announced: int
    least_announced: int
    missing: int
    unannounced: int
    repeated: int
    ended: int
    errors: list[str]
    longest_silence: float

    def assert_nothing_happened(self) -> None:
        """Fail if any client could tell that the bus was not there all the time."""
        assert self.sent > 0
        assert (self.missing, self.repeated, self.ended, self.announced, self.errors) == (0, 0, 0, 0, []), self
        assert self.received % self.sent == 0, self

    def assert_losses_are_told(self) -> None:
        """Fail if a connection ended, anything came twice or in disorder, or anything was missing that a client was not told of."""
        assert self.sent > 0
        assert (self.unannounced, self.repeated, self.ended, self.errors) == (0, 0, 0, []), self


class Choir:
    """A choir that sings."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == "ready"

    def ask(self, word: str) -> Findings:
        """Return what the choir has found when it was told *word*: ``report``, ``mark`` or ``end``."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return Findings(**json.loads(self._line()))

    def sings(self, messages: int = 200) -> Findings:
        """Wait until so many messages more have been received, and return what was found by then."""
        wanted = self.ask("report").received + messages
        while (found := self.ask("report")).received < wanted:
            assert not found.ended, found
        return found

    def end(self) -> Findings:
        """Let all arrive that is on its way, and return what was found at last."""
        found = self.ask("end")
        assert self.process.wait(ANSWER_SECONDS) == 0
        return found

    def _line(self) -> str:
        """Return the next line of the program."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        assert ready, f"the choir has said nothing for {ANSWER_SECONDS} s"
        line = self.process.stdout.readline()
        assert line, f"the choir has ended: {self.process.stderr.read() if self.process.stderr else ''}"
        return line.rstrip("\n")


@contextmanager
def singing(machine: Container, address: str = "/run/sbus.socket", *, user: str | None = "alice", options: str = "") -> Iterator[Choir]:
    """Have a choir sing on the bus at *address*; what it finds is to be asked for before the block ends."""
    process = machine.start(f"ulimit -n 8192; exec python3 /opt/programs/choir.py {address} {options}", user=user)
    try:
        yield Choir(process)
    finally:
        process.kill()
        process.communicate()
