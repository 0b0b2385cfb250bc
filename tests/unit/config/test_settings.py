"""The settings' own rules; the defaults are compared with the manual in test_manual.py."""

from __future__ import annotations

import dataclasses

import pytest

from sbusd.config.quantities import Spelling
from sbusd.config.settings import LEVELS, CredentialPrefix, DaemonSettings
from sbusd.protocol.keys import KeySpace


def test_settings_cannot_be_changed() -> None:
    settings = DaemonSettings()
    for each in dataclasses.fields(settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, each.name, None)


def test_the_key_space_follows_the_settings() -> None:
    assert DaemonSettings().keyspace == KeySpace(b"/", b"")
    assert DaemonSettings(separator=".").keyspace == KeySpace(b".", b"")
    assert DaemonSettings(credential_prefix="!/cred/1/2/3").keyspace == KeySpace(b"/", b"!/cred/1/2/3")


def test_a_prefix_needs_the_separator_that_has_secrets() -> None:
    with pytest.raises(ValueError, match="credential_prefix requires separator"):
        DaemonSettings(separator=".", credential_prefix="!/cred/1/2/3")


def test_levels_are_numbered_as_syslog_does() -> None:
    assert LEVELS.index("emerg") == 0
    assert LEVELS.index("debug") == 7


@pytest.mark.parametrize("value", ["", "!/cred/1/2/3", "!/cred/1/2/3/!/cred/4/5/6"])
def test_a_credential_prefix_is_taken(value: str) -> None:
    assert CredentialPrefix().parse(value) == value


@pytest.mark.parametrize("value", ["x", "!/cred/1/2", "!/cred/1/2/3/", "!/cred//2/3", 3, None, "\ud800"])
def test_an_invalid_credential_prefix_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match='must be "!/cred/'):
        CredentialPrefix().parse(value)


def test_every_spelling_says_how_it_is_read() -> None:
    with pytest.raises(NotImplementedError):
        Spelling().parse(1)
