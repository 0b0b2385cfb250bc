"""Tells a newcomer what is done, by which command, and what came back."""

from __future__ import annotations

import shlex
import sys


class DemoError(Exception):
    """Something did not happen as it was said; the text is the reason, in one line or with what came back below it."""


class Narrator:
    """Numbers the steps and prints them as they happen, one idea a line."""

    def __init__(self) -> None:
        self._step = 0

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        self._print(f"\n{self._step}. {title}")

    def command(self, who: str, words: list[str], *, background: bool = False) -> None:
        """Show what *who* types."""
        self._print(f"     {who}$ {shlex.join(words)}{' &' if background else ''}")

    def answer(self, text: str) -> None:
        """Show what a program wrote, a line each."""
        for line in text.splitlines():
            self._print(f"       {line}")

    def remark(self, text: str) -> None:
        """Say what that means."""
        self._print(f"     -> {text}")

    def end(self, text: str) -> None:
        """Say the last words."""
        self._print(f"\n{text}")

    def _print(self, line: str) -> None:
        """Print at once: between two lines a program may take its time."""
        sys.stdout.write(line.rstrip() + "\n")
        sys.stdout.flush()
