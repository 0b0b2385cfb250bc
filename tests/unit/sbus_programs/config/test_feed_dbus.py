"""feed-dbus.toml: what it accepts, and what its errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.feed_dbus import DBusFeedSettings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.loading import load_settings

WHOLE = """rate = 5
[[signal]]
key = "dbus/lab/{object}/{arg0}-{member}"
sender = "org.example.Lab-1"
interface = "org.example.Lab"
member = "Value"
path_namespace = "/org/example"
arg0 = "it's"
"""

REQUIRED = {"key": "dbus/lab", "sender": "org.example.Lab", "interface": "org.example.Lab"}


def load(folder: Path, text: str) -> DBusFeedSettings:
    """Return the settings in a file."""
    file = folder / "feed-dbus.toml"
    file.write_text(text)
    return load_settings(file, DBusFeedSettings, required=True)


def table(**values: str) -> str:
    """Return a table with the required keys and *values*."""
    return "[[signal]]\n" + "".join(f"{name} = '''{value}'''\n" for name, value in {**REQUIRED, **values}.items())


def test_a_whole_file(tmp_path: Path) -> None:
    settings = load(tmp_path, WHOLE)
    (rule,) = settings.signals
    assert settings.rate == 5
    assert (rule.key, rule.sender, rule.interface) == ("dbus/lab/{object}/{arg0}-{member}", "org.example.Lab-1", "org.example.Lab")
    assert (rule.member, rule.path, rule.path_namespace, rule.arg0) == ("Value", "", "/org/example", "it's")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[signal]]\nkey = 'dbus/a'\n", "signal.1.sender: required key is missing"),
        (table(key="net/link"), 'signal.1.key: must begin with "dbus/"'),
        (table(key="dbus/{arg0}"), "must have a name of its own"),
        (table(key="dbus/x{arg0}/y"), "must have a name of its own"),
        (table(key="dbus/request"), "must have a name of its own"),
        (table(key="dbus/state/x"), "must have a name of its own"),
        (table(key="dbus/a//b"), "empty segment"),
        (table(key="dbus/"), "empty segment"),
        (table(key="dbus/a*"), 'must not contain "*"'),
        (table(key="dbus/a/{arg10}"), "has an unknown field"),
        (table(key="dbus/a/{"), "has an unknown field"),
        (table(key="dbus/a/" + "{arg0}" * 9), "has more than 8 fields"),
        (table(key="dbus/" + "x" * 2000), "must be a key"),
        (table(sender=":1.5"), "must be the well-known name of a service"),
        (table(sender="*"), "must be the well-known name of a service"),
        (table(sender="a.b',x='y"), "must be the well-known name of a service"),
        (table(interface="Lab"), "must be an interface"),
        (table(member="a.b"), "must be the name of a signal"),
        (table(path="/a/"), "must be an object path"),
        (table(path="/a", path_namespace="/a"), "path and path_namespace are mutually exclusive"),
        (table(arg0="x" * 1025), "must be a text of at most 1024 printable ASCII characters"),
        (table(arg0="ü"), "must be a text of at most 1024 printable ASCII characters"),
        (table(origin="x"), "unknown key"),
        (table(members="Value"), "signal.1.members: unknown key"),
        ("rate = 0\n", "rate: must be 1 to 1000000, not 0"),
        (table() * 65, "too many tables [[signal]]: 65, at most 64"),
    ],
)
def test_errors(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
