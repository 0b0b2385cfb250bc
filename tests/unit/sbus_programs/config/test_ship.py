"""ship.toml: its valid keys, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config import ConfigError
from sbus_programs.config.ship import ShipSettings, load_ship_settings


def read(folder: Path, text: str) -> ShipSettings:
    file = folder / "ship.toml"
    file.write_text(text)
    return load_ship_settings(file, required=True)


def test_settings_are_read(tmp_path: Path) -> None:
    assert load_ship_settings(tmp_path / "none.toml") == ShipSettings()
    given = 'destination = "s3://b/x"\narchive = "/a"\nhost = "alpha"\nstate = "/s"\ninterval = "1min"\nretention = "365d"\n'
    assert read(tmp_path, given) == ShipSettings("s3://b/x", "/a", "alpha", "/s", 60.0, 365 * 86_400.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('archive = "here"', "archive: must be an absolute path"),
        ('interval = "0s"', "interval: must be 1s to 1d"),
        ("retention = 1", "retention: "),
        ('bucket = "x"', "bucket: unknown key"),
    ],
)
def test_invalid_settings_are_reported(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
