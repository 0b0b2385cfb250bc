"""Reads configuration files by tomllib and pydantic, and recovers what a broken drop-in was about.

Tables of later files are merged into those of earlier ones key by key. An array of tables is appended to the earlier one, and each of its
tables gets its origin. A list in a file of a package is joined to one of another package: each package can grant a right to its service.
Any other value replaces the earlier one.

The text of a broken drop-in is only read as a reason to deny. So more is taken for a rule than is one, but never less. What cannot be
understood is unknown, and the caller must then deny everything.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sbus.protocol.printable import printable
from sbus_programs.config.files import MAX_FILE_BYTES, PACKAGE_FOLDER, PATH_MAX, ConfigError, NotRegularError, read_content
from sbus_programs.config.quantities import is_whole, show
from sbus_programs.config.rules import MAX_PREFIX_BYTES, Origin
from sbus_programs.config.users import LAST_ID, UnknownId

Table = dict[str, Any]
KeyPath = tuple[int | str, ...]
Settings = TypeVar("Settings")

ORIGIN = "origin"
"""The key for the origin of a table in an array; no file can set it."""

MAX_DOTS = 100
"""Maximum number of dots in a line, outside strings and comments: the time of tomllib grows with the square of the parts of a key."""

_NO_DOTS_OF_KEYS = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)|"(?:[^"\\\n]|\\[^\n])*"?|\'[^\'\n]*\'?|\#[^\n]*''', re.DOTALL
)
"""A string or a comment. An unterminated one extends to where tomllib stops, so the time is proportional to the text."""

MAX_SHOWN = 8
"""Errors that follow the first one in a line."""

_TOO_DEEP = "tables are nested too deeply: two levels are enough for every key"

_MISSING = "required key is missing"


def read_settings(files: Sequence[Path], settings: type[Settings]) -> Settings:
    """Return an instance of the dataclass *settings* from all *files* together; later files override earlier ones.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value. It names all such keys.
    """
    return settings_of([(file, read_table(file)) for file in files], settings)


def settings_of(tables: Sequence[tuple[Path, Table]], settings: type[Settings]) -> Settings:
    """Return the settings of all *tables* together, each with its file. Raises ConfigError as :func:`read_settings`."""
    document: Table = {}
    origins: dict[KeyPath, Path] = {(): tables[-1][0]}
    try:
        for file, table in tables:
            _merge(document, table, (), file, origins)
        return _adapter(settings).validate_python(document)
    except RecursionError:
        # The earlier tables were read without this error.
        raise ConfigError(tables[-1][0], "", _TOO_DEEP) from None
    except ValidationError as error:
        raise _config_error(error, settings, origins) from None


def _adapter(settings: type[Settings]) -> TypeAdapter[Settings]:
    """Return what checks documents against *settings*."""
    if settings not in _ADAPTERS:
        _ADAPTERS[settings] = TypeAdapter(settings)
    return _ADAPTERS[settings]


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
"""By settings: one takes longer to make than to use, and a file is read several times."""


def read_table(file: Path) -> Table:
    """Return the TOML document in *file*. Raises ConfigError if it has none."""
    try:
        content = read_content(file)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(file, "", "dangling symbolic link; restore its target or remove the link") from None
    except (NotRegularError, IsADirectoryError):
        raise ConfigError(file, "", "not a regular file; replace or remove it") from None
    except OSError as error:
        raise ConfigError(file, "", f"cannot read it: {error.strerror}; let the user of the service read it") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(file, "", f"longer than {MAX_FILE_BYTES} bytes, the maximum for a configuration file")
    try:
        return parse(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"invalid UTF-8 in line {content.count(10, 0, error.start) + 1}; save the file as UTF-8") from None
    except RecursionError:
        raise ConfigError(file, "", _TOO_DEEP) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, "", f"invalid TOML: {error}") from None
    except ValueError:
        # Python rejects numbers with thousands of digits, with a text about Python.
        raise ConfigError(file, "", "a number has too many digits") from None


def parse(text: str) -> Table:
    """Return the TOML document *text*.

    Raises:
        ValueError: it is not TOML.
        RecursionError: it is nested too deeply for a configuration.
    """
    if any(line.count(".") > MAX_DOTS for line in _NO_DOTS_OF_KEYS.sub("", text).split("\n")):
        raise RecursionError("too many dots in a line")
    return tomllib.loads(text)


def _merge(into: Table, table: Table, path: KeyPath, file: Path, origins: dict[KeyPath, Path]) -> None:
    """Merge *table* into *into*, and store the file of each value in *origins*."""
    for key, value in table.items():
        here = (*path, key)
        if value == [] and _is_array_of_tables(into.get(key)):
            # An empty array adds no tables to those of earlier files.
            continue
        earlier_file, origins[here] = origins.get(here), file
        if isinstance(value, dict):
            earlier = into.get(key)
            into[key] = dict(earlier) if isinstance(earlier, dict) else {}
            _merge(into[key], value, here, file, origins)
        elif _is_array_of_tables(value):
            into[key] = _added(into.get(key), value, here, file, origins)
        elif isinstance(value, list) and isinstance(into.get(key), list) and _are_of_packages(earlier_file, file):
            into[key] = [*into[key], *(each for each in value if each not in into[key])]
        else:
            into[key] = value


def _is_array_of_tables(value: object) -> bool:
    """Return whether *value* is an array of tables, ``[[…]]``."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _are_of_packages(*files: Path | None) -> bool:
    """Return whether packages have installed all these files."""
    return all(file is not None and file.is_relative_to(PACKAGE_FOLDER) for file in files)


def _added(earlier: object, tables: list[Table], path: KeyPath, file: Path, origins: dict[KeyPath, Path]) -> list[Table]:
    """Return *tables* after those of earlier files, each with its origin, which is also stored in *origins*."""
    found = list(earlier) if isinstance(earlier, list) and _is_array_of_tables(earlier) else []
    for number, table in enumerate(tables, 1):
        origins[*path, len(found)] = file
        if ORIGIN in table:
            raise ConfigError(file, f"{path[-1]}.{number}.{ORIGIN}", "unknown key; the bus itself sets the origin of a table")
        found.append(table | {ORIGIN: Origin(printable(str(file), PATH_MAX), number)})
    return found


def _config_error(error: ValidationError, settings: type, origins: dict[KeyPath, Path]) -> ConfigError:
    """Return all errors of pydantic as one ConfigError: unknown keys first, because a misspelt key can cause the other errors."""
    problems = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "unexpected_keyword_argument")
    (file, key, reason), *others = [_located(each, settings, origins) for each in problems]
    if others:
        shown = [": ".join(filter(None, ("" if place == file else printable(str(place), PATH_MAX), *rest))) for place, *rest in others]
        more = [f"{len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
        reason += f" (errors in total: {len(problems)}; also {'; '.join([*shown[:MAX_SHOWN], *more])})"
    return ConfigError(file, key, reason)


def _located(problem: ErrorDetails, settings: type, origins: dict[KeyPath, Path]) -> tuple[Path, str, str]:
    """Return the file, the dotted key and the reason of an error of pydantic."""
    path: KeyPath = tuple(problem["loc"])
    origin = next(origins[path[:length]] for length in range(len(path), -1, -1) if path[:length] in origins)
    return origin, ".".join(_dotted(part) for part in _numbered(path, origins)), _reason(problem, settings)


def _numbered(path: KeyPath, origins: dict[KeyPath, Path]) -> KeyPath:
    """Return *path* with the number of a table in an array counted from 1, in its own file."""
    for length, part in enumerate(path, 1):
        if isinstance(part, int) and (file := origins.get(path[:length])) is not None:
            number = sum(origins.get((*path[: length - 1], each)) == file for each in range(part + 1))
            return (*path[: length - 1], number, *path[length:])
    return path


def _reason(problem: ErrorDetails, settings: type) -> str:
    """Return what is wrong with a key, and what would be valid."""
    match problem["type"]:
        case "unexpected_keyword_argument":
            return _unknown_key(str(problem["loc"][-1]), _keys_at(settings, problem["loc"][:-1]))
        case "value_error":
            return str(problem["ctx"]["error"])
        case "literal_error":
            return f"must be {problem['ctx']['expected']}, not {show(problem['input'])}"
        case "tuple_type":
            return f'must be a list, such as ["alice", 1000], not {show(problem["input"])}'
        case "dataclass_type":
            head = f"[{'.'.join(str(part) for part in problem['loc'] if isinstance(part, str))}]"
            head = f"[{head}]" if isinstance(problem["loc"][-1], int) else head
            return f"must be a table, not {show(problem['input'])}; write {head} and its keys below"
        case _:
            # Other errors keep the text of pydantic.
            return _MISSING if problem["type"] == "missing" else f"invalid value {show(problem['input'])}: {problem['msg']}"


def _unknown_key(key: str, known: list[str]) -> str:
    """Return the error text for an unknown key, with the most similar key, or all valid keys."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; valid keys are {', '.join(known)}"


def _keys_at(settings: type, path: KeyPath) -> list[str]:
    """Return the valid keys of the table at *path*, from the annotations of the dataclass *settings*."""
    kind: Any = settings
    for part in path:
        kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[_keys_of(kind)[part]]
    return [key for key in _keys_of(kind) if key != ORIGIN]


def _keys_of(kind: Any) -> dict[str, str]:
    """Return the name of each field of the dataclass *kind* by its key in a file. A field whose key Python reserves has an alias."""
    hints = get_type_hints(kind, include_extras=True)
    aliases = {
        field.name: each.alias
        for field in fields(kind)
        for each in getattr(hints[field.name], "__metadata__", ())
        if isinstance(each, FieldInfo)
    }
    return {aliases.get(field.name) or field.name: field.name for field in fields(kind)}


def _dotted(part: int | str) -> str:
    """Return one part of a key in TOML syntax."""
    text = str(part)
    is_bare = 0 < len(text) <= 100 and text.isascii() and all(character.isalnum() or character in "_-" for character in text)
    return text if is_bare else show(text)


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
