"""The rules that packages install for the bus: they are about the keys of their service, and the manual names them."""

from __future__ import annotations

import re

import pytest

from sbus.protocol.envelope import RELAY_HEAD, RELAYED_HEAD
from sbus_programs.config.documents import parse, settings_of
from sbus_programs.config.files import PACKAGE_FOLDER
from sbus_programs.config.rules import PolicyRule
from sbus_programs.config.settings import DaemonSettings
from sbus_services.feeds.journal.entry import PREFIX
from sbus_services.feeds.udev.devices import HEAD
from sbus_services.feeds.udev.feed import REQUEST
from sbus_services.link.remote_interest import MAX_ALL_PATTERNS
from sbus_services.relay.sender import ATTEMPT_KEY
from tests.support.manual import source
from tools.stage import ROOT

FILES = ROOT / "etc" / "sbusd.toml.d"

USERS = {"sbus-blob": 61, "sbus-link": 62, "sbus-store": 63, "sbus-relay": 64, "sbus-recorder": 65, "root": 0}


def settings(*names: str) -> DaemonSettings:
    """Return the settings in the files of packages with these names; users that are not in USERS have number 0, groups 4."""
    tables = []
    for name in names:
        text = re.sub(r'groups = \["\w+"\]', "groups = [4]", (FILES / name).read_text("utf-8"))
        text = re.sub(r'"(sbus-[a-z]+)"', lambda found: str(USERS.get(found[1], 0)), text)
        tables.append((PACKAGE_FOLDER / "sbusd.toml.d" / name, parse(text)))
    return settings_of(tables, DaemonSettings)


def is_for_all(rule: PolicyRule) -> bool:
    """Return whether a rule applies to every user."""
    return not rule.users and not rule.groups


def test_all_files_together_give_each_service_its_rights() -> None:
    rights = settings(*(path.name for path in sorted(FILES.glob("50-*.toml")))).rights
    assert set(rights.presence.users) == {61, 62, 63}
    assert set(rights.vouch.users) == {62, 63}
    assert set(rights.deliver.users) == {63}


def test_the_recorder_may_tap() -> None:
    assert settings("50-recorder.toml").rights.tap.users == (65,)


@pytest.mark.parametrize("service", ["link", "recorder", "relay"])
def test_the_manual_names_the_file(service: str) -> None:
    assert f"sbusd.toml.d/50-{service}.toml" in source(f"sbus-{service}.8")


def test_the_rules_of_the_link() -> None:
    read = settings("50-link.toml")
    assert read.rights.vouch.users == read.rights.presence.users == (62,)
    (override,) = read.quotas.overrides
    assert override.users == (62,)
    assert override.subscriptions is not None
    assert override.subscriptions > 2 * MAX_ALL_PATTERNS
    assert [rule.keys for rule in read.policy] == ["host/", "host/", "link/", "link/", "rpc/link/", "rpc/link/"]
    for allowing, denying in zip(read.policy[::2], read.policy[1::2], strict=True):
        assert set(allowing.users) == {0, 62}
        assert "deny" in {denying.publish, denying.subscribe}
        assert is_for_all(denying)


def test_the_rules_of_the_relay() -> None:
    """tests/integration/relay/test_bus_users.py tests their effect."""
    policy = settings("50-relay.toml").policy
    assert {rule.keys for rule in policy} == {ATTEMPT_KEY, RELAY_HEAD.decode(), RELAYED_HEAD.decode()}
    for keys in {rule.keys for rule in policy}:
        *allowing, last = (rule for rule in policy if rule.keys == keys)
        assert allowing
        assert not any(is_for_all(rule) for rule in allowing)
        assert (last.publish, is_for_all(last)) == ("deny", True)


def test_the_rules_of_the_journal_are_shown_in_the_manual() -> None:
    shipped = (FILES / "50-journal.toml").read_text()
    rules = "".join(line for line in shipped.splitlines(keepends=True) if not line.startswith("#")).lstrip("\n")
    assert f".Bd -literal -offset indent\n{rules}.Ed" in source("sbus-feed.8")
    assert {rule.keys for rule in settings("50-journal.toml").policy} == {PREFIX}


def test_the_rules_of_the_store_protect_devices_but_not_requests() -> None:
    rules = [rule for rule in settings("50-store.toml").policy if rule.keys.startswith(HEAD)]
    assert [(rule.keys, rule.publish) for rule in rules] == [(REQUEST, "allow"), (HEAD, "allow"), (HEAD, "deny")]
    assert [is_for_all(rule) for rule in rules] == [True, False, True]
    shown = re.findall(rf'^keys = "{HEAD}"\n(?:.*\n)*?users = (.*)$', (FILES / "50-store.toml").read_text(), re.MULTILINE)
    assert shown == ['["root", "sbus-feed", "sbus-store"]']
