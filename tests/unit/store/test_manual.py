"""store.toml(5) has every key, with the default of the code; the files of the package are valid."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from sbusd.config.loading import load_settings
from sbusd.config.quantities import Duration, Size
from sbusd.config.store import QueueSettings, StoreLimits, StoreSettings, StreamSettings
from tools.stage import ROOT

PAGE = Path(ROOT, "man/store.toml.5").read_text()


def documented(text: str) -> dict[str, str | None]:
    """Return the keys with their defaults in a part of the page; None for a required key."""
    found = re.findall(r"^\.It Cm (\w+)(?: No = (.*))?$", text, re.MULTILINE)
    return {key: default.replace(r"\(dq", '"') if default else None for key, default in found}


def written(value: object, default: str) -> object:
    """Return *default* of the page as the value that the code has, of the type of *value*."""
    text = re.sub(r"^Qq ?", "", default)
    if isinstance(value, bool):
        return text == "true"
    if isinstance(value, tuple):
        return tuple(Duration(0, 1e9, "").parse(each) for each in re.findall(r'"(.*?)"', text))
    if isinstance(value, float):
        return 0.0 if text == "0" else Duration(0, 1e9, "").parse(text)
    if isinstance(value, int):
        return int(text) if text.isdigit() else Size(0, 1 << 62, "").parse(text)
    return text


PARTS = dict(zip((StoreSettings, StreamSettings, QueueSettings, StoreLimits), re.split(r"^\.El$", PAGE, flags=re.MULTILINE), strict=False))


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_keys_and_defaults(kind: type) -> None:
    keys = documented(PARTS[kind])
    code = {each.name: each for each in fields(kind) if each.name not in {"origin", "streams", "queues", "limits"}}
    assert list(keys) == list(code)
    for name, default in keys.items():
        if default is None:
            assert code[name].default is MISSING, name
        else:
            assert written(code[name].default, default) == code[name].default, name


def test_the_example_of_the_manual_and_the_file_of_the_package_are_valid(tmp_path: Path) -> None:
    example = re.search(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed", PAGE, re.MULTILINE | re.DOTALL)
    assert example is not None
    shipped = Path(ROOT, "etc/store.toml").read_text()
    streams = load_settings(Path(ROOT, "etc/store.toml"), StoreSettings, required=True).streams
    assert sorted(each.name for each in streams) == ["logind", "net", "systemd", "udev"]
    for text in (example[1], re.sub(r"^#(?=[\[a-z])", "", shipped, flags=re.MULTILINE)):
        file = tmp_path / "store.toml"
        file.write_text(text)
        settings = load_settings(file, StoreSettings, required=True)
        assert [each.name for each in settings.streams] == ["sensors", "mail"]
        assert [each.name for each in settings.queues] == ["mail"]
