"""Each key of each configuration file, with values at and beyond its limits: settings that can be used, or an error with the key."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from sbus_programs.config.blob import BlobSettings
from sbus_programs.config.documents import ORIGIN, read_settings
from sbus_programs.config.feed_dbus import DBusFeedSettings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.link import LinkSettings
from sbus_programs.config.live import LiveSettings
from sbus_programs.config.metrics import MetricsSettings
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.config.relay import RelaySettings
from sbus_programs.config.settings import DaemonSettings
from sbus_programs.config.ship import ShipSettings
from sbus_programs.config.store import StoreSettings
from sbus_programs.config.trigger import TriggerSettings

_FILES: tuple[type, ...] = (
    *(BlobSettings, DBusFeedSettings, DaemonSettings, LinkSettings, LiveSettings, MetricsSettings, RecorderSettings, RelaySettings),
    *(ShipSettings, StoreSettings, TriggerSettings),
)

_VALUES = (
    *("inf", "-inf", "nan", "0", "-1", "0.0", "-0.5", "1e308", str(2**63), str(-(2**63) - 1), "9" * 400, "true", "[]", "{}", "[{}]"),
    *("2026-11-28", "[[[]]]", "{ a = 1 }", '[1, "", true]', '""', '" "', '"\\u0000"', '"\\u001b[2J"', '"é"', '"x"', "'\\'"),
    *('"0s"', '"-1s"', '"31d"', '"999999999999999d"', '"inf"', '"infs"', '"nans"', '"1e9s"', '"0B"', '"-1KiB"', '"999999999999999GiB"'),
    *('"none"', '"whole"', '"/"', '"*"', '"!/x"', f'"{"x" * 5_000}"', f'"{"/x" * 3_000}"', "[" + '"a",' * 600 + "]"),
)
"""TOML values that are too small, too large, no numbers, empty, of another type, or not printable."""


_OF_OTHERS = "required key is missing|(?:rule decides|override changes) nothing|is for transport|too many digits|invalid TOML"
"""Errors about the rest of an incomplete table, or about the file."""


def _bare(kind: Any) -> Any:
    """Return *kind* without Annotated, and without None in a union."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if isinstance(kind, types.UnionType):
        return next((_bare(each) for each in get_args(kind) if dataclasses.is_dataclass(_bare(each))), kind)
    return kind


def _keys(settings: type, heads: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield the heads of tables, the key, and its dotted name in an error as a regular expression, for each key below *settings*."""
    from sbus_programs.config.documents import _keys_of

    hints = get_type_hints(settings, include_extras=True)
    for key, field in _keys_of(settings).items():
        if key == ORIGIN:
            continue
        kind, path = _bare(hints[field]), ".".join((*names, key))
        item = _bare(get_args(kind)[0]) if get_origin(kind) is tuple else None
        yield "\n".join(heads), key, rf"\b{re.escape(key)}\b"
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _keys(kind, (*heads, f"[{path}]"), (*names, key))
        elif dataclasses.is_dataclass(item) and isinstance(item, type):
            yield from _keys(item, (*heads, f"[[{path}]]"), (*names, key))


def _numbers(value: object) -> Iterator[float]:
    """Yield all numbers in settings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _numbers(getattr(value, each.name))
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("settings", _FILES, ids=lambda settings: settings.__name__)
def test_every_value_of_every_key_is_usable_or_an_error_with_its_name(settings: type, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    wrong = []
    keys = list(_keys(settings))
    assert keys
    for head, key, name in keys:
        for value in _VALUES:
            file.write_text(f"{head}\n{key} = {value}\n")
            try:
                found: object = read_settings([file], settings)
            except ConfigError as error:
                text = str(error)
                is_clear = text.isprintable() and text.startswith(f"{file}: ") and len(text) < 4_000
                # A valid value of an incomplete table: the error is about the others.
                is_named = re.search(rf"{name}|{_OF_OTHERS}", text)
                if not is_clear or not is_named:
                    wrong.append(f"{head} {key} = {value[:40]}: {text[:300]}")
            except Exception as error:  # what users would see as a traceback
                wrong.append(f"{head} {key} = {value[:40]}: {type(error).__name__}: {error}"[:300])
            else:
                if not all(math.isfinite(each) for each in _numbers(found)):
                    wrong.append(f"{head} {key} = {value[:40]}: {found}"[:300])
    assert not wrong, wrong[0]


@pytest.mark.parametrize("settings", _FILES, ids=lambda settings: settings.__name__)
def test_a_misspelt_key_and_a_doubled_key_are_named(settings: type, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    for head, key, _ in _keys(settings):
        file.write_text(f"{head}\n{key}x = -1\n")
        with pytest.raises(ConfigError, match=rf"{key}x: unknown key; did you mean \w+\?") as unknown:
            read_settings([file], settings)
        assert unknown.value.key.endswith(f"{key}x")
        file.write_text(f"{head}\n{key} = 1\n{key} = 2\n")
        with pytest.raises(ConfigError, match="invalid TOML: Cannot overwrite a value"):
            read_settings([file], settings)
