"""The settings of sbus-live."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sbus_programs.config.documents import parse, settings_of
from sbus_programs.config.files import PACKAGE_FOLDER, ConfigError
from sbus_programs.config.live import MAX_THRESHOLDS, Anomaly, LiveSettings, load_live_settings
from sbus_programs.config.settings import DaemonSettings
from tools.stage import ROOT

FILE = Path("/etc/sbus/live.toml")

FLOOD = '[[thresholds]]\nname = "flood"\nmeasure = "messages"\nraise_at = 100\n'


def parsed(text: str) -> LiveSettings:
    """Return the settings in *text*."""
    return settings_of([(FILE, tomllib.loads(text))], LiveSettings)


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    assert load_live_settings(tmp_path / "live.toml") == LiveSettings()


def test_values() -> None:
    settings = parsed(f'delay = "20s"\n{FLOOD}by = "prefix"\nclear_at = 50\n[anomaly]\nweeks = 4\ndeviations = 8\n')
    assert settings.delay == 20.0
    assert settings.anomaly == Anomaly(weeks=4, deviations=8)
    (flood,) = settings.thresholds
    assert (flood.name, flood.measure, flood.by, flood.raise_at, flood.cleared_at) == ("flood", "messages", "prefix", 100, 50)


def test_by_default_a_lower_value_clears() -> None:
    assert parsed(FLOOD).thresholds[0].cleared_at == 99


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("delay = 0", "delay: "),
        ("speed = 1", "speed"),
        (FLOOD.replace('"flood"', '"Flood"'), "name: must be 1 to 64 lower-case letters"),
        (FLOOD.replace('"flood"', '"a/b"'), "name: must be 1 to 64 lower-case letters"),
        (FLOOD.replace('"flood"', '"anomaly"'), "is the name of the alerts of [anomaly]"),
        (FLOOD.replace('"messages"', '"noise"'), "measure"),
        (FLOOD + 'by = "host"', "by"),
        (FLOOD.replace("100", "0"), "raise_at: must be 1 to"),
        (FLOOD + "clear_at = 100", "clear_at must be less than raise_at, 100, not 100"),
        (FLOOD + FLOOD, "two thresholds have the name"),
        ("".join(FLOOD.replace("flood", f"f{number}") for number in range(MAX_THRESHOLDS + 1)), "too many thresholds: 101, at most 100"),
        ("[anomaly]\nweeks = 2", "min_weeks must be at most weeks, 2, not 3"),
        ("[anomaly]\ndeviations = 1.5", "deviations: must be a whole number"),
    ],
)
def test_errors(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def tap_users(*files: tuple[str, str | None]) -> tuple[int, ...]:
    """Return the users with the right ``tap``, by drop-ins in this order: a name, and the text of the administrator or None."""
    tables = []
    for name, text in files:
        folder = PACKAGE_FOLDER / "sbusd.toml.d" if text is None else Path("/etc/sbus/sbusd.toml.d")
        content = (ROOT / "etc/sbusd.toml.d" / name).read_text() if text is None else text
        content = re.sub(r'"(sbus-[a-z]+)"', lambda found: {"sbus-live": "1", "sbus-recorder": "2"}[found[1]], content)
        tables.append((folder / name, parse(content)))
    return tuple(settings_of(tables, DaemonSettings).rights.tap.users)


def test_the_rules_of_the_package_grant_only_the_right_of_this_service() -> None:
    live, recorder = ("50-live.toml", None), ("50-recorder.toml", None)
    assert tap_users(live, recorder) == (1, 2)
    assert tap_users(live) == (1,)
    # An empty file masks the rules of the recorder, and a list of the administrator replaces those of both packages.
    assert tap_users(live, ("50-recorder.toml", "")) == (1,)
    assert tap_users(live, ("50-recorder.toml", "[rights]\ntap = { users = [7] }")) == (7,)
    assert tap_users(live, recorder, ("55-own.toml", "[rights]\ntap = { users = [7] }")) == (7,)
