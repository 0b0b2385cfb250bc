"""The settings' own rules, and whose quotas are which; the defaults are compared with the manual in test_manual_settings.py."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from pathlib import Path

import pytest

from sbus.protocol.credentials import Credentials
from sbus.protocol.keys import KeySpace
from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.quantities import NO_BOUND, Spelling
from sbus_programs.config.settings import LEVELS, CredentialPrefix, DaemonSettings, QuotaOverride, Quotas, QuotaSettings

ALICE = Credentials(1, 1000, 100, frozenset({200, 300}))
ROOT = Credentials(1, 0, 0)


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
def test_a_credential_prefix_is_accepted(value: str) -> None:
    assert CredentialPrefix().parse(value) == value


@pytest.mark.parametrize("value", ["x", "!/cred/1/2", "!/cred/1/2/3/", "!/cred//2/3", 3, None, "\ud800"])
def test_an_invalid_credential_prefix_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match='must be "!/cred/'):
        CredentialPrefix().parse(value)


def test_every_spelling_says_how_it_is_read() -> None:
    with pytest.raises(NotImplementedError):
        Spelling().parse(1)


def test_without_overrides_everyone_has_the_default() -> None:
    assert QuotaSettings(connections=7).of(ALICE, is_owner=False) == Quotas(connections=7)


def test_an_owner_has_each_default_many_times() -> None:
    quotas = QuotaSettings(owner_factor=3).of(ROOT, is_owner=True)
    assert [getattr(quotas, each.name) for each in fields(Quotas)] == [
        min(getattr(Quotas(), each.name) * 3, NO_BOUND) for each in fields(Quotas)
    ]


def test_the_first_override_that_has_a_quota_decides_on_it_alone() -> None:
    settings = QuotaSettings(
        overrides=(
            QuotaOverride(users=(1001,), connections=1),
            QuotaOverride(groups=(300,), connections=2),
            QuotaOverride(users=(1000,), connections=3, subscriptions=4),
            QuotaOverride(subscriptions=5, control_rate=6),
        )
    )
    assert settings.of(ALICE, is_owner=False) == Quotas(connections=2, subscriptions=4, control_rate=6)


def test_an_override_is_not_multiplied_for_an_owner() -> None:
    quotas = QuotaSettings(overrides=(QuotaOverride(users=(0,), connections=3),)).of(ROOT, is_owner=True)
    assert (quotas.connections, quotas.subscriptions) == (3, Quotas().subscriptions * 16)


@pytest.mark.parametrize(
    ("override", "concerned"),
    [
        (QuotaOverride(connections=1), True),
        (QuotaOverride(users=(1000,), connections=1), True),
        (QuotaOverride(users=(1001,), connections=1), False),
        (QuotaOverride(groups=(100,), connections=1), True),
        (QuotaOverride(groups=(200,), connections=1), True),
        (QuotaOverride(groups=(1000,), connections=1), False),
        (QuotaOverride(users=(1001,), groups=(300,), connections=1), True),
        (QuotaOverride(users=(1001,), groups=(301,), connections=1), False),
    ],
)
def test_whom_an_override_concerns(override: QuotaOverride, concerned: bool) -> None:
    assert override.applies_to(ALICE) is concerned


def _read(folder: Path, *texts: str) -> QuotaSettings:
    files = [folder / f"{number}.toml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return read_settings(files, DaemonSettings).quotas


def test_a_file_can_set_each(tmp_path: Path) -> None:
    head = "[quotas]\nconnections = 3\nowner_factor = 1\n"
    tail = '[[quotas.overrides]]\nusers = ["root", 1000]\ngroups = [7]\nqueued_bytes = "1MiB"\n'
    read = _read(tmp_path, head + tail, "[[quotas.overrides]]\nconnection_rate = 9\n")
    assert (read.connections, read.owner_factor) == (3, 1)
    first, second = read.overrides
    assert (first.users, first.groups, first.queued_bytes, first.connections) == ((0, 1000), (7,), 1 << 20, None)
    assert (second.connection_rate, str(second.origin)) == (9, f"rule 1 of {tmp_path}/1.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[quotas]\nconnection = 3", "quotas.connection: unknown key; did you mean connections?"),
        ("[quotas]\nconnections = 0", "quotas.connections: must be 1 to 1048576, not 0: the bus needs a descriptor for each"),
        (
            "[[quotas.overrides]]\nusers = [0]",
            "quotas.overrides.1: the override changes nothing; write a quota and its value, such as connections = 16",
        ),
        ("[[quotas.overrides]]\nowner_factor = 3", "quotas.overrides.1.owner_factor: unknown key; valid keys are users, groups, conn"),
        ('[[quotas.overrides]]\nconnections = "x"', 'quotas.overrides.1.connections: must be a whole number from 1 to 1048576, not "x"'),
        ("[quotas]\noverrides = 3", "quotas.overrides: must be a list, such as"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        _read(tmp_path, text)
    assert str(refusal.value).startswith(f"{tmp_path}/0.toml: {says}")
    assert str(refusal.value).isprintable()
