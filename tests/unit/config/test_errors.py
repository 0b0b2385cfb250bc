"""The text of a configuration error."""

from __future__ import annotations

from pathlib import Path

from sbusd.config.files import ConfigError
from sbusd.protocol.errors import SbusError


def test_the_text_names_file_key_and_reason() -> None:
    assert str(ConfigError(Path("/etc/x.toml"), "limits.queue_bytes", "is wrong")) == "/etc/x.toml: limits.queue_bytes: is wrong"
    assert str(ConfigError(Path("/etc/x.toml"), "", "is not TOML")) == "/etc/x.toml: is not TOML"


def test_the_facts_are_fields() -> None:
    error = ConfigError(Path("/etc/x.toml"), "a", "b")
    assert (error.file, error.key, error.reason) == (Path("/etc/x.toml"), "a", "b")
    assert isinstance(error, SbusError)


def test_a_file_cannot_break_the_line() -> None:
    assert str(ConfigError(Path("/a\nb"), "", "c")) == r"/a\x0ab: c"
