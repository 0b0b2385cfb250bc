"""relay.toml: what is right, and one clear line for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.relay import RelaySettings


def read(folder: Path, text: str) -> RelaySettings:
    """Return the settings that *text* says."""
    file = folder / "relay.toml"
    file.write_text(text)
    return read_settings([file], RelaySettings)


def test_the_defaults_listen_on_loopback_only() -> None:
    settings = RelaySettings()
    assert not settings.is_authenticated
    assert settings.listen == ""
    assert settings.retry_interval == 5.0


def test_a_key_makes_hosts_authenticated(tmp_path: Path) -> None:
    settings = read(tmp_path, 'listen = "[::]:8051"\n[[peers]]\ntwin = 2\naddress = "[fd00::2]:8051"\nkey_file = "/k"\n')
    assert settings.is_authenticated
    assert settings.peers[0].address == "[fd00::2]:8051"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("twin = -1", "must be 0 to 4294967295"),
        ("twin = 4294967296", "must be 0 to 4294967295"),
        ('listen = "localhost:8051"', "must be an address and port"),
        ('listen = "0.0.0.0:8051"', "without authentication"),
        ('substrate = "ftp://x"', "must be an http or https URL"),
        ('substrate = "http://x:99999"', "must be an http or https URL"),
        ('network = "moon"', "must be "),
        ("[[peers]]\ntwin = 2\n[[peers]]\ntwin = 2", "duplicate [[peers]] with twin = 2"),
        ('[[peers]]\naddress = "10.0.0.2:1"', "is missing"),
        ('[[peers]]\ntwin = 2\nkey_file = "key"', "must be an absolute path"),
        ('[tls]\ncertificate = "/c"', "requires certificate, key and authority"),
        ('[tls]\ncertificate = "/c"\nkey = "/k"\nauthority = "/a"\n[[peers]]\ntwin = 2\nkey_file = "/k"', "remove one of them"),
        ("retries = 1", "unknown key"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
