"""Recovers what a broken drop-in was about: the keys of its rules, and whether it restricts who may connect.

The text is only read as a reason to deny. So this takes more for a rule than is one, but never less. What cannot be understood is unknown,
and the caller must then deny everything.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbusd.config.documents import Table, parse
from sbusd.config.files import MAX_FILE_BYTES, read_content
from sbusd.config.quantities import is_whole
from sbusd.config.rules import MAX_PREFIX_BYTES
from sbusd.config.users import LAST_ID, UnknownId

_STRING = r'(?:"(?:[^"\\]|\\.)*"|\'[^\']*\')'
_NOT_CODE = re.compile(rf"{_STRING}|#.*")
"""A string or a comment in one line."""
_KEYS = re.compile(rf"\s*keys\s*=\s*({_STRING})\s*(?:#.*)?")
"""A line that has only the keys of a rule."""
_RULE = re.compile(r"\s*\[\[\s*policy\s*\]\]\s*")
_QUOTED_KEY = re.compile(r'""\s*[=.\]]|[\[.]\s*""')
_WORDS = re.compile(r"keys|polic(?:y|ies)")
_ALLOWED = re.compile(r"(?<![\w-])allowed_users(?![\w-])")


@dataclass(frozen=True, slots=True)
class RecoveredDropIn:
    """The recovered part of a broken file: ``prefixes`` is None if its rules are unknown, ``allowed_users`` if it has none.

    If its users are unknown, ``has_unknown_users`` is true, and ``allowed_users`` match no client.
    """

    prefixes: tuple[str, ...] | None = ()
    allowed_users: list[Any] | None = None

    @property
    def has_unknown_users(self) -> bool:
        """Whether the file has, or may have, allowed users that cannot be read."""
        return self.allowed_users == no_users()


def recover(file: Path) -> RecoveredDropIn:
    """Return the recovered part of *file*. A dangling link has nothing, like a missing file."""
    try:
        content = read_content(file)
    except (FileNotFoundError, NotADirectoryError):
        return RecoveredDropIn()
    except OSError:
        return RecoveredDropIn(None, no_users())
    if len(content) > MAX_FILE_BYTES:
        return RecoveredDropIn(None, no_users())
    text = content.decode("utf-8", "replace")
    try:
        return _of_table(parse(text))
    except (ValueError, RecursionError):
        return _of_text(text)


def outermost(prefixes: Iterator[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return *prefixes*, sorted, without those that start with another one."""
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)


def _of_table(table: Table) -> RecoveredDropIn:
    """Return the recovered part of a TOML document that is not a valid configuration."""
    allowed = table.get("allowed_users")
    # An empty list would admit every user, and a file with a fault must open nothing.
    users = None if allowed is None or allowed == [] else allowed if _is_list_of_users(allowed) else no_users()
    found = list(_keys_in(table))
    rules = table.get("policy", [])
    has_all = isinstance(rules, list) and all(isinstance(rule, dict) and "keys" in rule for rule in rules)
    prefixes = [_prefix(value) for value in found if isinstance(value, str)]
    return RecoveredDropIn(outermost(tuple(prefixes)) if has_all and len(prefixes) == len(found) else None, users)


def _keys_in(value: object) -> Iterator[object]:
    """Return each value with the key "keys", in any table."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "keys":
                yield each
            else:
                yield from _keys_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys_in(each)


def _of_text(text: str) -> RecoveredDropIn:
    """Return the recovered part of a text that is not TOML.

    Its rules are known only if each starts with ``[[policy]]`` and has exactly one line with its keys. Any other line about rules may be
    a rule with unknown keys.
    """
    # Not splitlines(): it accepts other line ends than TOML.
    lines = [(line, _NOT_CODE.sub(_emptied, line)) for line in text.split("\n")]
    has_quoted_keys = any(_QUOTED_KEY.search(code) for _, code in lines)
    users = no_users() if has_quoted_keys or any(_ALLOWED.search(line) for line, code in lines if code.strip()) else None
    if has_quoted_keys or "\0" in text or '"""' in text or "'''" in text:
        return RecoveredDropIn(None, users)
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
            return RecoveredDropIn(None, users)
    # Two lines with keys in one rule: the header of the second rule is broken.
    return RecoveredDropIn(outermost(tuple(prefixes)) if all(count == 1 for count in keys_of_rules) else None, users)


def _emptied(found: re.Match[str]) -> str:
    """Return an empty string literal for a string, and nothing for a comment."""
    return "" if found[0].startswith("#") else '""'


def _string(literal: str) -> str | None:
    """Return the value of a TOML string *literal*, or None if it is invalid."""
    try:
        value = tomllib.loads(f"a = {literal}")["a"]
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _prefix(keys: str) -> str:
    """Return the prefix of all keys that *keys*, which may be an invalid prefix, can mean."""
    # U+FFFD replaces unknown bytes that are not UTF-8.
    known = re.split("[*\0\ufffd]", keys, maxsplit=1)[0]
    # A shorter prefix denies more keys.
    return known.encode("utf-8", "surrogatepass")[:MAX_PREFIX_BYTES].decode("utf-8", "ignore")


def _is_list_of_users(value: object) -> bool:
    """Return whether *value* is a list of users, known or unknown."""
    return isinstance(value, list) and all(isinstance(each, str) or (is_whole(each) and 0 <= each <= LAST_ID) for each in value)


def no_users() -> list[Any]:
    """Return the users in place of a list that cannot be read: they match no client."""
    return [UnknownId("")]
