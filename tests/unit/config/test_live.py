"""The settings of sbus-live."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sbusd.config.documents import settings_of
from sbusd.config.files import ConfigError
from sbusd.config.live import MAX_THRESHOLDS, Anomaly, LiveSettings, load_live_settings

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
