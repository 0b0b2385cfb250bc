"""Configuration files, read and checked: TOML by tomllib, its meaning by pydantic against the dataclasses of ``settings``.

Tables of later files are merged into those of earlier ones key by key; any other value replaces the earlier one whole.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sbusd.config.errors import ConfigError
from sbusd.config.quantities import show

MAX_FILE_BYTES = 1 << 20
"""Longest file that is read: what a person would write is a thousandth of it, and a wrong ``-C`` may name anything."""

Table = dict[str, Any]
KeyPath = tuple[int | str, ...]
Settings = TypeVar("Settings")


def read_settings(files: Sequence[Path], settings: type[Settings]) -> Settings:
    """Return an instance of the dataclass *settings* as *files* together say, the last word being the last file's.

    Raises:
        ConfigError: a file cannot be read, is not TOML, has an unknown key, or a value that is not right. The first wrong key
            is named, and how many more there are.
    """
    document: Table = {}
    origins: dict[KeyPath, Path] = {(): files[-1]}
    for file in files:
        _merge(document, _read(file), (), file, origins)
    try:
        return TypeAdapter(settings).validate_python(document)
    except ValidationError as error:
        raise _config_error(error, settings, origins) from None


def _read(file: Path) -> Table:
    """Return the TOML document in *file*."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(file, "", f"cannot be read: {error.strerror}; let the bus's user read it") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(file, "", f"is longer than {MAX_FILE_BYTES} bytes, so it is not a configuration file")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"is not UTF-8 at line {content.count(10, 0, error.start) + 1}; save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(file, "", "is nested too deeply; sbusd.toml(5) needs two levels") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, "", f"is not TOML: {error}; write it as sbusd.toml(5) shows") from None
    except ValueError:
        # Python does not read a number of thousands of digits, and says so in words about itself.
        raise ConfigError(file, "", "has a number of too many digits; write it as sbusd.toml(5) shows") from None


def _merge(into: Table, table: Table, path: KeyPath, file: Path, origins: dict[KeyPath, Path]) -> None:
    """Put the keys of *table* into *into*, and note in *origins* which file each value comes from."""
    for key, value in table.items():
        here = (*path, key)
        origins[here] = file
        if isinstance(value, dict):
            earlier = into.get(key)
            into[key] = dict(earlier) if isinstance(earlier, dict) else {}
            _merge(into[key], value, here, file, origins)
        else:
            into[key] = value


def _config_error(error: ValidationError, settings: type, origins: dict[KeyPath, Path]) -> ConfigError:
    """Return the first of pydantic's complaints as this project words it."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    path: KeyPath = tuple(first["loc"])
    reason = _reason(first, settings)
    if len(complaints) > 1:
        reason += f" ({len(complaints) - 1} more wrong in the configuration)"
    origin = next(origins[path[:length]] for length in range(len(path), -1, -1) if path[:length] in origins)
    return ConfigError(origin, ".".join(_dotted(part) for part in path), reason)


def _reason(complaint: ErrorDetails, settings: type) -> str:
    """Return what is wrong with a key, and what would be right."""
    match complaint["type"]:
        case "unexpected_keyword_argument":
            return _unknown_key(str(complaint["loc"][-1]), _keys_at(settings, complaint["loc"][:-1]))
        case "value_error":
            return str(complaint["ctx"]["error"])
        case "literal_error":
            return f"{show(complaint['input'])} is not known; write {complaint['ctx']['expected']}"
        case "tuple_type":
            return f'{show(complaint["input"])} is not a list; write one in brackets, such as ["alice", 1000]'
        case "dataclass_type":
            return f"{show(complaint['input'])} is not a table; write [{'.'.join(map(str, complaint['loc']))}] with its keys below"
        case _:
            # Whatever a later setting adds is at least told in pydantic's words.
            return f"{show(complaint['input'])} is not right: {complaint['msg']}"


def _unknown_key(key: str, known: list[str]) -> str:
    """Return the refusal of an unknown key, with the one it resembles, or all there are."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; the keys here are {', '.join(known)}"


def _keys_at(settings: type, path: KeyPath) -> list[str]:
    """Return the keys that the table at *path* can have: every table has a default, so an instance has them all."""
    table = settings()
    for part in path:
        table = getattr(table, str(part))
    return [field.name for field in fields(table)]


def _dotted(part: int | str) -> str:
    """Return one part of a key as TOML spells it."""
    text = str(part)
    return text if text and all(character.isalnum() or character in "_-" for character in text) and text.isascii() else show(text)
