r"""The reply to a shell that completes a command line of sbusctl.

``sbusctl __complete bash LINE BREAKS`` and ``sbusctl __complete zsh|fish [WORD...] LAST`` print one line with a directive, then one line
for each completion. The directives are ``words``; ``open``, which is the same without a space after the word; and ``files``, which leaves
the completion to the shell. For bash, the completions are quoted; for the others, they are followed by a tab and a description.

readline replaces only a part of the last word: what follows the last of its word breaks, or what follows an open quote. A completion
therefore begins with what the user typed there, as it was typed, and continues with the rest, quoted. A word that was typed without
quotes is quoted again as a whole, because history expansion would replace its ``!``.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from sbus.protocol.errors import SbusError
from sbusctl.completion.bus_names import BusNames, StoreNames, command_of, fitting, key_of, pattern_of
from sbusctl.completion.command_lines import Expected, ValueKind, expected_after

_UNQUOTED = frozenset("/._,+%-")
"""Besides letters and digits, the characters that bash takes literally and that do not break words of readline."""

_IN_DOUBLE_QUOTES = frozenset('\\"$`')
"""The characters that a backslash makes literal in double quotes."""


@dataclass(slots=True)
class ShellWord:
    """One word of a command line."""

    raw: str = ""
    """As typed."""
    text: str = ""
    """Without quotes."""
    quote: str = ""
    """The quote that is open at the end."""
    quote_start: int = 0
    """Where the text after the open quote begins in ``raw``."""
    break_end: int = 0
    """Where the text after the last word break begins in ``raw``."""
    is_quoted: bool = False
    """Whether it contains quotes or backslashes."""
    is_escaping: bool = False
    """Whether it ends with a backslash that quotes the next character."""
    is_expanded: bool = False
    """Whether bash expands a part of it, such as ``$HOME``."""
    bangs: list[int] = field(default_factory=list)
    """Positions in ``raw`` of each ``!`` that history expansion replaces."""


def split_line(line: str, breaks: str) -> tuple[list[str], ShellWord]:
    """Return the words before the last one without quotes, and the last one, up to the cursor at the end of *line*.

    A redirection is omitted; if it is not complete, the last word has ``is_expanded`` set. *breaks* are the characters in
    ``COMP_WORDBREAKS``.
    """
    reader = _Reader(breaks)
    for character in line:
        reader.feed(character)
    return reader.words, reader.end()


def unquoted(raw: str) -> str:
    """Return the text of one word, whose last quote can be open."""
    reader = _Reader("")
    for character in raw:
        reader.feed_word(character)
    return reader.end().text


class _Reader:
    """Reads a command line by characters."""

    def __init__(self, breaks: str) -> None:
        self.words: list[str] = []
        self._breaks = frozenset(breaks) - frozenset(" \t\n\"'")
        self._word: ShellWord | None = None
        self._is_escaped = False
        self._is_redirected = False

    def feed(self, character: str) -> None:
        """Read one character."""
        word = self._word
        if self._is_escaped or (word is not None and word.quote):
            self.feed_word(character)
        elif character in " \t\n":
            self._finish()
        elif character in "<>":
            # A number before it is a descriptor.
            if word is not None and word.raw.isdigit():
                self._word = None
            self._finish()
            self._is_redirected = True
        else:
            self.feed_word(character)

    def feed_word(self, character: str) -> None:
        """Read one character of a word."""
        word = self._word or self._begin()
        if self._is_escaped or word.quote:
            self._feed_quoted(word, character)
        else:
            self._feed_unquoted(word, character)

    def end(self) -> ShellWord:
        """Return the last word."""
        word = self._word or ShellWord()
        word.is_expanded = word.is_expanded or self._is_redirected
        word.is_escaping = self._is_escaped
        return word

    def _begin(self) -> ShellWord:
        self._word = ShellWord()
        return self._word

    def _finish(self) -> None:
        """Note the end of a word."""
        if self._word is not None and not self._is_redirected:
            self.words.append(self._word.text)
        if self._word is not None:
            self._is_redirected = False
        self._word = None

    def _feed_unquoted(self, word: ShellWord, character: str) -> None:
        """Read a character outside of quotes."""
        if character == "!":
            word.bangs.append(len(word.raw))
        word.raw += character
        if character in "\"'":
            word.quote, word.quote_start, word.is_quoted = character, len(word.raw), True
        elif character == "\\":
            self._is_escaped = word.is_quoted = True
        else:
            word.is_expanded = word.is_expanded or character in "$`"
            word.text += character
            if character in self._breaks:
                word.break_end = len(word.raw)

    def _feed_quoted(self, word: ShellWord, character: str) -> None:
        """Read a character in quotes, or after a backslash."""
        if character == "!" and word.quote == '"':
            word.bangs.append(len(word.raw))
        word.raw += character
        if self._is_escaped:
            self._is_escaped = False
            word.text += character if not word.quote or character in _IN_DOUBLE_QUOTES else f"\\{character}"
        elif character == word.quote:
            word.quote = ""
        elif character == "\\" and word.quote == '"':
            self._is_escaped = True
        else:
            word.is_expanded = word.is_expanded or (word.quote == '"' and character in "$`")
            word.text += character


def completion_of(word: ShellWord, value: str) -> str | None:
    """Return what replaces the end of *word* to make it *value*, which begins with its text; None if that is not safe.

    It is not safe if the part that stays contains a ``!`` that history expansion would replace, or if the rest needs one in double quotes.
    """
    start = word.quote_start if word.quote else word.break_end
    if not word.is_quoted:
        return None if any(bang < start for bang in word.bangs) else quoted(value[start:])
    rest = value[len(word.text) :]
    if word.bangs or word.is_escaping:
        return None
    if word.quote == '"' and "!" in rest:
        return None
    return word.raw[start:] + (_in_quotes(rest, word.quote) if word.quote else quoted(rest))


def _in_quotes(text: str, quote: str) -> str:
    """Return *text* for an open *quote*. readline closes the quote, except after that character."""
    last = ""
    if text.endswith(quote):
        text, last = text[:-1], f"{quote}\\{quote}"
    if quote == "'":
        return text.replace("'", r"'\''") + last
    return "".join(f"\\{each}" if each in _IN_DOUBLE_QUOTES else each for each in text) + last


def quoted(text: str) -> str:
    """Return *text* with a backslash before each character that bash or readline could interpret."""
    return "".join(each if each.isalnum() or each in _UNQUOTED else f"\\{each}" for each in text)


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
