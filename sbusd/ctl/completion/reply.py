"""The reply to a shell that completes a command line of sbusctl.

``sbusctl __complete bash LINE BREAKS`` and ``sbusctl __complete zsh|fish [WORD...] LAST`` print one line with a directive, then one line
for each completion. The directives are ``words``; ``open``, which is the same without a space after the word; and ``files``, which leaves
the completion to the shell. For bash, the completions are quoted; for the others, they are followed by a tab and a description.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from sbusd.ctl.completion.bus_names import BusNames, StoreNames, command_of, fitting, key_of, pattern_of
from sbusd.ctl.completion.command_lines import Expected, ValueKind, expected_after
from sbusd.ctl.completion.shell_words import completion_of, split_line, unquoted
from sbusd.protocol.errors import SbusError

TIMEOUT_VARIABLE = "SBUS_COMPLETION_TIMEOUT"
"""The environment variable with the maximum time to wait for the bus, in seconds."""

DEFAULT_SECONDS = 1.0

_MAX_SECONDS = 3600.0

_NAMES = {ValueKind.KEY: key_of, ValueKind.PATTERN: pattern_of, ValueKind.SERVICE: command_of}

_STORED = {ValueKind.STREAM: "streams", ValueKind.QUEUE: "queues"}
"""The lists of the store."""


class _TimeUpError(Exception):
    """The bus has not responded in time."""


def complete(arguments: Sequence[str]) -> list[str]:
    """Return the lines for *arguments*, which follow ``__complete``; none if they are invalid."""
    match arguments:
        case ["bash", line, breaks]:
            return _bash_lines(line, breaks)
        case ["zsh" | "fish", *words, last]:
            # fish keeps the quotes of the last word.
            begin = unquoted(last) if arguments[0] == "fish" else last
            directive, found = _completions(words, begin)
            return [directive, *(f"{word}\t{note}" for word, note in found)]
    return []


def _bash_lines(line: str, breaks: str) -> list[str]:
    """Return the lines for bash."""
    words, last = split_line(line, breaks)
    if last.is_expanded:
        return ["files"]
    directive, found = _completions(words[1:], last.text)
    lines = [each for word, _ in found if (each := completion_of(last, word)) is not None]
    if len(found) == 1 and found[0][0].endswith(("/", "=")):
        directive = "open"
    return [directive, *lines]


def _completions(words: Sequence[str], last: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the directive, and the completions of *last* with their descriptions."""
    expected = expected_after(words, last)
    if expected.kind is ValueKind.FILE and not expected.words:
        return "files", []
    begin = last.removeprefix(expected.prefix)
    found = [(word, note) for word, note in expected.words if word.startswith(begin)]
    found += [(name, "") for name in _values(expected, begin) if not (expected.is_argument and name.startswith("-"))]
    return "words", [(expected.prefix + word, note) for word, note in found if _can_print(word)]


def _values(expected: Expected, begin: str) -> list[str]:
    """Return the values that begin with *begin*."""
    if expected.kind is ValueKind.USER:
        return fitting((each.pw_name for each in pwd.getpwall()), begin)
    if expected.kind is ValueKind.GROUP:
        return fitting((each.gr_name for each in grp.getgrall()), begin)
    names: BusNames | StoreNames
    if expected.kind in _STORED:
        names = StoreNames(begin, _STORED[expected.kind])
    elif expected.kind in _NAMES:
        names = BusNames(begin, _NAMES[expected.kind])
    else:
        return []
    seconds = _seconds()
    with contextlib.suppress(SbusError, OSError, _TimeUpError), _limited(seconds), expected.settings.connect(seconds) as bus:
        names.read(bus)
    return names.chosen()


def _can_print(word: str) -> bool:
    """Return whether *word* can be printed in one line, in the encoding of standard output."""
    try:
        word.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return word.isprintable()


def _seconds() -> float:
    """Return the maximum time to wait for the bus."""
    try:
        seconds = float(os.environ.get(TIMEOUT_VARIABLE, ""))
    except ValueError:
        return DEFAULT_SECONDS
    return min(seconds, _MAX_SECONDS) if seconds > 0 else DEFAULT_SECONDS


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise _TimeUpError in the block after *seconds*."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TimeUpError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
