"""Control of tests/system/programs/numbered_clients.py, whose clients run in a container."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.container import Container

ANSWER_SECONDS = 90.0
"""The timeout of a reply of the program."""


class Findings(NamedTuple):
    """The results of the clients; see the program."""

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
        """Fail if any client noticed an interruption of the bus."""
        assert self.sent > 0
        assert (self.missing, self.repeated, self.ended, self.announced, self.errors) == (0, 0, 0, 0, []), self
        assert self.received % self.sent == 0, self

    def assert_losses_reported(self) -> None:
        """Fail if a connection ended, or a message was duplicated, reordered, or lost without a report."""
        assert self.sent > 0
        assert (self.unannounced, self.repeated, self.ended, self.errors) == (0, 0, 0, []), self


class NumberedClients:
    """The running clients."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == "ready"

    def ask(self, word: str) -> Findings:
        """Send the command *word*, ``report``, ``mark`` or ``end``, and return the results."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return Findings(**json.loads(self._line()))

    def wait_for_messages(self, messages: int = 200) -> Findings:
        """Wait until *messages* more messages have been received, and return the results."""
        wanted = self.ask("report").received + messages
        while (found := self.ask("report")).received < wanted:
            assert not found.ended, found
        return found

    def end(self) -> Findings:
        """Wait until all pending messages have arrived, stop, and return the final results."""
        found = self.ask("end")
        assert self.process.wait(ANSWER_SECONDS) == 0
        return found

    def _line(self) -> str:
        """Return the next line of the program."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        assert ready, f"the clients have not replied for {ANSWER_SECONDS} s"
        line = self.process.stdout.readline()
        assert line, f"the clients have exited: {self.process.stderr.read() if self.process.stderr else ''}"
        return line.rstrip("\n")


@contextmanager
def numbered_clients(
    machine: Container, address: str = "/run/sbus.socket", *, user: str | None = "alice", options: str = ""
) -> Iterator[NumberedClients]:
    """Run the clients on the bus at *address*; request their results before the end of the context."""
    process = machine.start(f"ulimit -n 8192; exec python3 /opt/programs/numbered_clients.py {address} {options}", user=user)
    try:
        yield NumberedClients(process)
    finally:
        process.kill()
        process.communicate()
