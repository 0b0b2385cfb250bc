"""What a broken drop-in was about, as far as that can still be known: the keys of its rules, and whether it says who may connect.

Nothing is read as an instruction here but as a reason to deny, so more is taken for a rule than is one, and never less: what cannot be
understood is unknown, and the caller then has to deny everything.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbusd.config.content import MAX_FILE_BYTES, Table, parse, read_content
from sbusd.config.quantities import is_whole
from sbusd.config.rules import MAX_PREFIX_BYTES
from sbusd.config.unknown_ids import UnknownId
from sbusd.config.users import LAST_UID

_STRING = r'(?:"(?:[^"\\]|\\.)*"|\'[^\']*\')'
_NOT_CODE = re.compile(rf"{_STRING}|#.*")
"""A string, or a comment, of one line."""
_KEYS = re.compile(rf"\s*keys\s*=\s*({_STRING})\s*(?:#.*)?")
"""A line that says for which keys a rule is, and nothing else."""
_RULE = re.compile(r"\s*\[\[\s*policy\s*\]\]\s*")
_QUOTED_KEY = re.compile(r'""\s*[=.\]]|[\[.]\s*""')
_WORDS = re.compile(r"keys|polic(?:y|ies)")
_ALLOWED = re.compile(r"(?<![\w-])allowed_users(?![\w-])")


@dataclass(frozen=True, slots=True)
class Remains:
    """What is known of a broken file: ``prefixes`` is None if its rules cannot be known, and ``allowed_users`` if it names nobody.

    Where nobody knows whom it names, ``has_unknown_users`` is true, and ``allowed_users`` are those who match no client.
    """

    prefixes: tuple[str, ...] | None = ()
    allowed_users: list[Any] | None = None

    @property
    def has_unknown_users(self) -> bool:
        """Whether the file says who may connect, or may do so, in a way that cannot be understood."""
        return self.allowed_users == nobody()


def remains_of(file: Path) -> Remains:
    """Return what can be known of *file*. A link to a file that does not exist has nothing, as if it were not there itself."""
    try:
        content = read_content(file)
    except (FileNotFoundError, NotADirectoryError):
        return Remains()
    except OSError:
        return Remains(None, nobody())
    if len(content) > MAX_FILE_BYTES:
        return Remains(None, nobody())
    text = content.decode("utf-8", "replace")
    try:
        return _of_table(parse(text))
    except (ValueError, RecursionError):
        return _of_text(text)


def outermost(prefixes: Iterator[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return *prefixes*, sorted, without those that begin with another one."""
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)


def _of_table(table: Table) -> Remains:
    """Return what a TOML document is about that is wrong as a configuration."""
    allowed = table.get("allowed_users")
    # An empty list would let everyone in, and a file with a fault opens nothing.
    users = None if allowed is None or allowed == [] else allowed if _is_list_of_users(allowed) else nobody()
    found = list(_keys_in(table))
    rules = table.get("policy", [])
    has_all = isinstance(rules, list) and all(isinstance(rule, dict) and "keys" in rule for rule in rules)
    prefixes = [_prefix(value) for value in found if isinstance(value, str)]
    return Remains(outermost(tuple(prefixes)) if has_all and len(prefixes) == len(found) else None, users)


def _keys_in(value: object) -> Iterator[object]:
    """Return each value that is called "keys", however the table around it is called."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "keys":
                yield each
            else:
                yield from _keys_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys_in(each)


def _of_text(text: str) -> Remains:
    """Return what a text is about that is not TOML.

    Its rules are known only if each begins with ``[[policy]]`` and has one line with its keys. Any other line about rules may be a rule
    with unknown keys.
    """
    # Of all that splitlines() takes for the end of a line, TOML does that only for this.
    lines = [(line, _NOT_CODE.sub(_emptied, line)) for line in text.split("\n")]
    has_quoted_keys = any(_QUOTED_KEY.search(code) for _, code in lines)
    users = nobody() if has_quoted_keys or any(_ALLOWED.search(line) for line, code in lines if code.strip()) else None
    if has_quoted_keys or "\0" in text or '"""' in text or "'''" in text:
        return Remains(None, users)
    prefixes: list[str] = []
    keys_of_rules: list[int] = []
    for line, code in lines:
        if _RULE.fullmatch(code):
            keys_of_rules.append(0)
        elif (match := _KEYS.fullmatch(line)) is not None and (keys := _string(match[1])) is not None:
            prefixes.append(_prefix(keys))
            if keys_of_rules:
                keys_of_rules[-1] += 1
        elif _WORDS.search(code):
            return Remains(None, users)
    # Two in one rule: the head of the second is what is broken.
    return Remains(outermost(tuple(prefixes)) if all(count == 1 for count in keys_of_rules) else None, users)


def _emptied(found: re.Match[str]) -> str:
    """Return a string without its content, and nothing for a comment."""
    return "" if found[0].startswith("#") else '""'


def _string(literal: str) -> str | None:
    """Return the value of a TOML string, or None if it is not one."""
    try:
        value = tomllib.loads(f"a = {literal}")["a"]
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _prefix(keys: str) -> str:
    """Return how all keys begin that *keys*, which may be no prefix, can have been meant for."""
    # U+FFFD stands for bytes that are not UTF-8, and nobody knows for which.
    known = re.split("[*\0\ufffd]", keys, maxsplit=1)[0]
    # A shorter prefix denies more.
    return known.encode("utf-8", "surrogatepass")[:MAX_PREFIX_BYTES].decode("utf-8", "ignore")


def _is_list_of_users(value: object) -> bool:
    """Return whether each of *value* can be a user, known here or not."""
    return isinstance(value, list) and all(isinstance(each, str) or (is_whole(each) and 0 <= each <= LAST_UID) for each in value)


def nobody() -> list[Any]:
    """Return the users of a list that cannot be read."""
    return [UnknownId("")]
