"""The settings of sbus-metrics."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sbus_programs.config.documents import settings_of
from sbus_programs.config.files import ConfigError
from sbus_programs.config.metrics import MetricsSettings

FILE = Path("/etc/sbus/metrics.toml")


def parsed(text: str) -> MetricsSettings:
    """Return the settings in *text*."""
    return settings_of([(FILE, tomllib.loads(text))], MetricsSettings)


def test_values() -> None:
    text = 'bus = "/run/a"\nusers = ["daemon", 7, "no-such-user"]\nmax_users = 0\nprefixes = ["net/", "a/b/"]\nidle_timeout = "1h"'
    assert parsed(text) == MetricsSettings("/run/a", ("daemon", "7", "no-such-user"), 0, ("net/", "a/b/"), 3600.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('bus = "x"', "bus: must be an absolute path"),
        ("users = [-1]", "users.0: must be the name or number of a user"),
        ('users = [""]', "users.0: must be the name or number of a user"),
        ("users = [true]", "users.0: must be the name or number of a user"),
        ("max_users = 501", "max_users: "),
        ('prefixes = ["net"]', 'prefixes.0: must be a prefix of keys that ends with "/"'),
        ('prefixes = ["a*/"]', "without a wildcard"),
        ('prefixes = ["a\\n/"]', "prefixes.0: must be a prefix"),
        ('prefixes = ["!/cred/"]', "no ordinary key starts with"),
        ('prefixes = ["a/", "a/"]', "prefixes names a prefix twice"),
        (f"prefixes = {[f'{number}/' for number in range(17)]}", "prefixes has 17 items, at most 16"),
        ('idle_timeout = "0s"', "idle_timeout: "),
        ("user = []", "user"),
    ],
)
def test_errors_name_the_key_and_the_reason(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(text)
    assert str(error.value).startswith("/etc/sbus/metrics.toml: ")
    assert words in str(error.value)
