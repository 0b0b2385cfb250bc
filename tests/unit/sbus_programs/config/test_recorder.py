"""recorder.toml: its valid keys, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_archive.record.layout import is_host
from sbus_programs.config import ConfigError
from sbus_programs.config.recorder import HostName, RecorderSettings, load_recorder_settings


def read(folder: Path, text: str) -> RecorderSettings:
    file = folder / "recorder.toml"
    file.write_text(text)
    return load_recorder_settings(file, required=True)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_recorder_settings(tmp_path / "recorder.toml") == RecorderSettings()
    assert read(tmp_path, "") == RecorderSettings()


def test_every_setting_can_be_given(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        archive = "/srv/record/"
        spool = "/var/spool/x"
        host = "alpha"
        pattern = "net/"
        sync_interval = "50ms"
        sync_rows = 10
        rotate_interval = "1min"
        rotate_rows = 1000
        rotate_bytes = "16MiB"
        disk_quota = "1GiB"
        retention = "7d"
        shipped = "/var/lib/sbus-ship/shipped"
        keep = "1KiB"
        [[payloads]]
        keys = "big/"
        keep = "none"
        [[payloads]]
        keys = "!/conn/"
        keep = "whole"
        """,
    )
    assert (settings.archive, settings.sync_interval, settings.retention, settings.keep) == ("/srv/record", 0.05, 7 * 86_400, 1024)
    assert settings.shipped == "/var/lib/sbus-ship/shipped"
    assert [(rule.keys, rule.keep) for rule in settings.payloads] == [("big/", "none"), ("!/conn/", "whole")]


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ('archive = "here"', "archive", "must be an absolute path"),
        ("archive = 1", "archive", "must be an absolute path"),
        ('shipped = "here"', "shipped", "must be an absolute path"),
        ('host = "a/b"', "host", "invalid host name"),
        ('host = "-a"', "host", "invalid host name"),
        ('keep = "some"', "keep", '; or use "whole" or "none"'),
        ('keep = "1GiB"', "keep", "must be "),
        ("keep = true", "keep", '; or use "whole" or "none"'),
        ("sync_rows = 0", "sync_rows", "must be "),
        ('retention = "1min"', "retention", "must be "),
        ('[[payloads]]\nkeys = "a*"\nkeep = "none"', "payloads.1.keys", "without a wildcard"),
        ('[[payloads]]\nkeys = "a"', "payloads.1.keep", "is missing"),
        ('archive = "/a"\nspool = "/a/"', "", "must be different directories"),
        ('disk_quota = "16MiB"', "", "at least twice rotate_bytes"),
        ('patern = ""', "patern", "did you mean pattern"),
        ('pattern = "\\u0000"', "", "contains a NUL"),
    ],
)
def test_an_error_names_its_key(tmp_path: Path, text: str, key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read(tmp_path, text)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["alpha", "a.b", "a-b_c", "0", "a" * 64, "a" * 65, ".a", "a..b", "a.", "ä", "a b", "-a", "_a", "a/b"])
def test_a_host_name_is_valid_in_the_archive(name: str) -> None:
    try:
        HostName().parse(name)
    except ValueError:
        assert not is_host(name)
    else:
        assert is_host(name)
