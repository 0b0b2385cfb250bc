"""sbus-link(8) and link.toml(5) document every option and key with its default and bounds, every event, member and limit."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import tomllib
import typing
from pathlib import Path

import pytest
import typer.main

from sbusd.config import load_daemon_settings
from sbusd.config.documents import read_settings
from sbusd.config.hosts import TlsSettings
from sbusd.config.link import PORT, ExportSettings, ImportSettings, LinkPeerSettings, LinkSettings
from sbusd.config.quantities import NO_BOUND, Count, Size, show_size
from sbusd.link import main
from sbusd.link.administration import MAX_HOSTS, MAX_PATTERNS, MAX_WAITING, MAX_WAITING_OF_USER, SYNC_SECONDS
from sbusd.link.local_interest import HOSTED_HEAD, LIMITS, RESERVED, WITHDRAW_AFTER
from sbusd.link.log_messages import MESSAGES
from sbusd.link.network.direct import MAX_PEERS
from sbusd.link.peers import HOSTS_PER_SECOND, MAX_INTERVAL, MIN_INTERVAL, MISSED
from sbusd.link.peers import MAX_PEERS as MAX_HOSTS_OF_REALM
from sbusd.link.remote_interest import COST, MAX_ALL_PATTERNS
from sbusd.link.rules import NEVER_EXPORTED
from sbusd.systemd.log_records import QUIET_SECONDS
from tests.support import skips
from tools.stage import ROOT

PAGE, CONFIGURATION = ROOT / "man" / "sbus-link.8", ROOT / "man" / "link.toml.5"
SAMPLE = ROOT / "etc" / "link.toml"
RULES = ROOT / "etc" / "sbusd.toml.d" / "50-link.toml"


def section(page: Path, title: str, head: str = "Sh") -> str:
    """Return one section of a page."""
    return re.split(r"\n\.S[hs] ", page.read_text("utf-8").split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def keys_of(table: type) -> list[str]:
    """Return the keys of a table of link.toml."""
    names = {"exports": "export", "imports": "import"}
    return [names.get(field.name, field.name) for field in dataclasses.fields(table) if field.name != "origin"]


def documented_defaults(text: str) -> str:
    """Return the keys that *text* documents with their defaults, as TOML."""
    lines = []
    for line in re.findall(r"^\.It Cm (\w+ No = .*)$", text, re.MULTILINE):
        key, _, value = line.replace(r"\(dq", '"').partition(" No = ")
        lines.append(f"{key} = " + re.sub(r"^Qq ?(.*)$", r'"\1"', value))
    return "\n".join(lines)


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section(PAGE, "OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"(?:Fl|,) (-?\w[\w-]*)", item.replace(" Ar FILE", ""))) for item in items}
    assert documented == {each - {"--help"} for each in offered} - {frozenset()}


def test_every_key_is_documented_with_its_default(tmp_path: Path) -> None:
    keys, rest = section(CONFIGURATION, "KEYS").split(".It Cm export No")
    exports, imports = rest.split(".It Cm import No")
    documented = documented_defaults(keys)
    assert [line.split(" = ")[0] for line in documented.splitlines()] == keys_of(LinkSettings)[:-2]
    (tmp_path / "x.toml").write_text(documented)
    assert read_settings([tmp_path / "x.toml"], LinkSettings) == LinkSettings()
    for text, table, name in ((exports, ExportSettings, "export"), (imports, ImportSettings, "import")):
        assert re.findall(r"^\.It Cm (\w+)", text, re.MULTILINE) == keys_of(table)
        (tmp_path / "x.toml").write_text(f'[[{name}]]\nkeys = "a/"\n{documented_defaults(text)}')
        (rule,) = getattr(read_settings([tmp_path / "x.toml"], LinkSettings), f"{name}s")
        assert dataclasses.replace(rule, origin=table("a/").origin) == table("a/")
    peers = keys.split(".It Cm peers")[1]
    assert re.findall(r"^\.It Cm (\w+)$", peers, re.MULTILINE) == keys_of(LinkPeerSettings)
    assert all(f".Cm {key}" in keys or f", {key}" in keys for key in keys_of(TlsSettings))


def test_the_sample_shows_every_key_with_its_default(tmp_path: Path) -> None:
    shown = re.sub(r"^# (\w+ = )", r"\1", SAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "x.toml").write_text(shown)
    assert read_settings([tmp_path / "x.toml"], LinkSettings) == LinkSettings()
    assert list(tomllib.loads(shown)) == keys_of(LinkSettings)
    assert read_settings([SAMPLE], LinkSettings) == LinkSettings()
    example = re.sub(r"^#     ?", "", SAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "x.toml").write_text(example)
    settings = read_settings([tmp_path / "x.toml"], LinkSettings)
    assert (settings.host, settings.tls.is_on) == ("alpha", True)
    assert (settings.exports[0].keys, settings.imports[0].keys) == ("net/", "")


@pytest.mark.parametrize("table", [LinkSettings, ExportSettings])
def test_the_bounds_are_documented(table: type) -> None:
    text = words(section(CONFIGURATION, "KEYS")).replace(" ,", ",")
    found = 0
    for name, annotation in typing.get_type_hints(table, include_extras=True).items():
        for spelling in getattr(annotation, "__metadata__", ()):
            if isinstance(spelling, Count):
                assert f"{spelling.least} to {spelling.most}" in text, name
            elif isinstance(spelling, Size):
                assert f"{show_size(spelling.least)} to {show_size(spelling.most)}" in text, name
            found += isinstance(spelling, Count | Size)
    assert found == {LinkSettings: 3, ExportSettings: 3}[table]
    assert ExportSettings("a").rate == NO_BOUND
    assert f":{PORT}" in text
    assert f"for up to {MAX_PEERS} hosts" in text


def test_the_keys_that_never_leave_are_documented() -> None:
    text = words(section(CONFIGURATION, "KEYS"))
    (listed,) = re.findall(r"Keys under (.*?) never leave", text)
    assert {each.encode() for each in re.split(r" , | and ", listed)} == set(NEVER_EXPORTED)


def test_the_limits_are_documented() -> None:
    text = words(PAGE.read_text("utf-8"))
    assert f"At most {MAX_WAITING_OF_USER} calls of one user, and {MAX_WAITING} in all, can wait" in text
    assert f"The command fails after {SYNC_SECONDS:g} s" in text
    assert f"the other hosts, at most {MAX_HOSTS}" in text
    assert f"has up to {MAX_PATTERNS} patterns" in text
    space = f"{LIMITS.lines} patterns for other hosts, of {LIMITS.bytes >> 20} MiB with {COST} bytes for each"
    assert f"have {space}, of which one eighth is reserved" in text
    assert f"among {LIMITS.lines * (RESERVED - 1) // RESERVED // 16} users, each can have 16 patterns" in text
    assert RESERVED == 8
    assert f"A host can have {MAX_ALL_PATTERNS} patterns of all others" in text
    assert f"no heartbeat for three intervals, {MISSED * MIN_INTERVAL:g} seconds" in text
    assert f"knows at most {MAX_HOSTS_OF_REALM} other hosts" in text
    assert f"n / {HOSTS_PER_SECOND} seconds, at least every {MIN_INTERVAL:g} and at most every {MAX_INTERVAL:g} seconds" in text
    assert f"noticed after {MISSED * MAX_INTERVAL / 60:g} minutes" in text
    assert f"{MAX_ALL_PATTERNS // 5_000} for each of 5000 hosts" in text
    assert WITHDRAW_AFTER == 1.0
    assert HOSTED_HEAD.decode() == "host/"


def test_every_event_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section(PAGE, "LOG MESSAGES"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {event.name for event in MESSAGES}
    assert f"logged once in {QUIET_SECONDS:g} s" in words(section(PAGE, "LOG MESSAGES"))


def test_every_member_of_the_state_is_documented() -> None:
    from tests.unit.link.test_administration import state

    text = words(section(PAGE, "ON THE BUS"))
    assert all(re.search(rf"\b{member}\b", text) for member in state([]))


def test_the_examples_are_valid(tmp_path: Path) -> None:
    assert f"{os.EX_CONFIG} The configuration is invalid" in words(section(PAGE, "EXIT STATUS"))
    examples = [each.split("\n.Ed")[0] for each in section(PAGE, "EXAMPLES").split(".Bd -literal -offset indent\n")[1:]]
    (by_nats,) = (each for each in examples if each.startswith('realm = "R"'))
    (direct,) = (each for each in examples if each.startswith("transport"))
    (tmp_path / "x.toml").write_text(by_nats)
    settings = read_settings([tmp_path / "x.toml"], LinkSettings)
    assert (settings.realm, settings.host, settings.tls.is_on) == ("R", "alpha", True)
    without_servers, tables = re.sub(r"^servers.*\n", "", by_nats, flags=re.MULTILINE).split("\n[tls]")
    keys, peers = direct.split("\n[[peers]]")
    (tmp_path / "x.toml").write_text(f"{without_servers}{keys}\n[[peers]]{peers}\n[tls]{tables}")
    assert [each.address for each in read_settings([tmp_path / "x.toml"], LinkSettings).peers] == ["beta.example:4223"]
    (tmp_path / "x.toml").write_text(section(CONFIGURATION, "EXAMPLES").split("-offset indent\n")[1].split("\n.Ed")[0])
    assert [each.shared for each in read_settings([tmp_path / "x.toml"], LinkSettings).imports] == [True, False]


def test_the_rules_of_the_package_are_about_the_keys_of_the_link(tmp_path: Path) -> None:
    assert f"sbusd.toml.d/{RULES.name}" in section(PAGE, "RIGHTS")
    (tmp_path / "x.toml").write_text(RULES.read_text().replace('"sbus-link"', "4711"))
    settings = load_daemon_settings(tmp_path / "x.toml", required=True)
    assert settings.rights.vouch.users == settings.rights.presence.users == (4711,)
    (override,) = settings.quotas.overrides
    assert override.users == (4711,)
    assert override.subscriptions is not None
    assert override.subscriptions > 2 * MAX_ALL_PATTERNS
    assert [rule.keys for rule in settings.policy] == ["host/", "host/", "link/", "link/", "rpc/link/", "rpc/link/"]
    for allowing, denying in zip(settings.policy[::2], settings.policy[1::2], strict=True):
        assert set(allowing.users) == {0, 4711}
        assert "deny" in {denying.publish, denying.subscribe}
        assert (denying.users, denying.groups) == ((), ())


@pytest.mark.parametrize("page", [PAGE, CONFIGURATION])
def test_the_pages_are_clean(page: Path) -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(page)], capture_output=True, text=True, check=False)
    # Other pages may be missing on this machine.
    unclean = [line for line in done.stdout.splitlines() if "referenced manual not found" not in line and "makewhatis" not in line]
    assert unclean == []
    skips.require_program("man", "man-db")
    shown = subprocess.run(
        ["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert shown.stderr == ""
    assert "SEE ALSO" in shown.stdout
