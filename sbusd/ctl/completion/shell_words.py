r"""The words of an incomplete command line of bash, and the quoting of completions.

readline replaces only a part of the last word: what follows the last of its word breaks, or what follows an open quote. A completion
therefore begins with what the user typed there, as it was typed, and continues with the rest, quoted. A word that was typed without
quotes is quoted again as a whole, because history expansion would replace its ``!``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
