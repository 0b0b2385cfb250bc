"""Explains each step to a newcomer: the purpose, the command, and its output."""

from __future__ import annotations

import shlex
import sys


class DemoError(Exception):
    """A step did not have the announced result; the text is the reason, possibly with output."""


class Narrator:
    """Numbers the steps and prints them as they happen, one idea per line."""

    def __init__(self) -> None:
        self._step = 0

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        self._print(f"\n{self._step}. {title}")

    def command(self, who: str, words: list[str], *, background: bool = False) -> None:
        """Show a command that *who* types."""
        self._print(f"     {who}$ {shlex.join(words)}{' &' if background else ''}")

    def answer(self, text: str) -> None:
        """Show the output of a program."""
        for line in text.splitlines():
            self._print(f"       {line}")

    def remark(self, text: str) -> None:
        """Explain the output."""
        self._print(f"     -> {text}")

    def end(self, text: str) -> None:
        """Print a paragraph outside of the steps."""
        self._print(f"\n{text}")

    def _print(self, line: str) -> None:
        """Print a line immediately, because the next program may take a while."""
        sys.stdout.write(line.rstrip() + "\n")
        sys.stdout.flush()
