"""sbus-relay(8) documents every option and key with its default and bounds, every event, header, path, status and limit."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import tomllib
import typing
from pathlib import Path

import typer.main

from sbusd.config import load_daemon_settings
from sbusd.config.documents import read_settings
from sbusd.config.hosts import TlsSettings
from sbusd.config.quantities import Count, Duration, Size, show_duration, show_size
from sbusd.config.relay import PORT, PeerSettings, RelaySettings
from sbusd.protocol.envelope import MAX_DESTINATIONS, MAX_TWIN, RELAY_HEAD, RELAYED_HEAD, relayed_key
from sbusd.relay import main, resolver
from sbusd.relay.bus.incoming_calls import ASK_SECONDS, AT_ONCE, TWIN_BYTES
from sbusd.relay.http import client, credentials, server
from sbusd.relay.http.credentials import twin_name
from sbusd.relay.log_messages import MESSAGES
from sbusd.relay.message_model import DEFAULT_EXPIRY_SECONDS, RelayMessage
from sbusd.relay.queue_handler import ABANDONED_WORDS
from sbusd.relay.redis import names, store
from sbusd.relay.sender import ATTEMPT_KEY
from sbusd.systemd.log_records import QUIET_SECONDS
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-relay.8"

SAMPLE = ROOT / "etc" / "relay.toml"


def section(title: str, head: str = "Sh") -> str:
    """Return one section of the page."""
    return re.split(r"\n\.S[hs] ", PAGE.read_text("utf-8").split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def documented_keys() -> dict[str, object]:
    """Return the keys of relay.toml with the defaults that the page states."""
    keys = {}
    for line in re.findall(r"^\.It Cm (\w+ No = .*)$", section("CONFIGURATION"), re.MULTILINE):
        key, _, value = line.partition(" No = ")
        keys[key] = tomllib.loads("x = " + re.sub(r"^Qq ?(.*)$", r'"\1"', value))["x"]
    return keys


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section("OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (\S+)", item)) for item in items}
    assert documented == offered | {frozenset({"--help"})}
    assert f"1 to {MAX_TWIN}" in words(section("OPTIONS"))


def test_every_key_is_documented_with_its_default(tmp_path: Path) -> None:
    documented = documented_keys()
    assert list(documented) == [each.name for each in dataclasses.fields(RelaySettings)]
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in documented.items()]
    (tmp_path / "x.toml").write_text("\n".join(lines))
    assert read_settings([tmp_path / "x.toml"], RelaySettings) == RelaySettings()


def test_the_sample_shows_every_key_with_its_default(tmp_path: Path) -> None:
    shown = re.sub(r"^# (\w+ = )", r"\1", SAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "x.toml").write_text(shown)
    assert read_settings([tmp_path / "x.toml"], RelaySettings) == RelaySettings()
    assert list(tomllib.loads(shown)) == [each.name for each in dataclasses.fields(RelaySettings)]
    assert read_settings([SAMPLE], RelaySettings) == RelaySettings()
    example = re.sub(r"^#     ?", "", SAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "x.toml").write_text(example)
    settings = read_settings([tmp_path / "x.toml"], RelaySettings)
    assert (settings.twin, [peer.twin for peer in settings.peers], settings.is_authenticated) == (1001, [1002], True)


def test_the_bounds_are_documented() -> None:
    text = words(section("CONFIGURATION"))
    for name, annotation in typing.get_type_hints(RelaySettings, include_extras=True).items():
        for spelling in getattr(annotation, "__metadata__", ()):
            match spelling:
                case Count():
                    assert (f"{spelling.least} to {spelling.most}" if spelling.least else f"up to {spelling.most}") in text, name
                case Size():
                    assert f"{show_size(spelling.least)} to {show_size(spelling.most)}" in text, name
                case Duration():
                    assert f"{show_duration(spelling.least)} to {show_duration(spelling.most)}" in text, name
    assert f"port {PORT} of every address" in text
    for table in (TlsSettings, PeerSettings):
        for field in dataclasses.fields(table):
            assert field.name == "origin" or f"\n.Cm {field.name}" in section("CONFIGURATION")


def test_every_member_of_a_message_is_documented() -> None:
    items = re.findall(r"^\.It Cm (\w+)$", section("Message format", "Ss"), re.MULTILINE)
    assert items == [field.alias or name for name, field in RelayMessage.model_fields.items()]
    assert f"0 means {DEFAULT_EXPIRY_SECONDS}" in words(section("Message format", "Ss"))
    assert f"at most {MAX_DESTINATIONS}" in words(section("Message format", "Ss"))


def test_the_queues_are_the_codes() -> None:
    text = PAGE.read_text()
    assert all(f".Ql {queue}" in text for queue in (*names.QUEUES, names.BACKLOG, names.REFUSED, names.COUNTERS))
    assert f"at most {store.MAX_REFUSED}." in words(section("Message flow", "Ss"))


def test_the_messages_between_hosts_are_documented() -> None:
    text = words(section("Between hosts", "Ss"))
    assert all(f"POST {path}" in text for path in (server.REMOTE_PATH, server.REPLY_PATH))
    (passing,) = re.findall(r"The sender retries after status ([\d, ]+) and 5xx\.", text)
    assert {int(each) for each in passing.split(",")} == client.PASSING


def test_the_permitted_users_are_documented() -> None:
    text = words(section("Authentication", "Ss"))
    for header in (credentials.FROM, credentials.TIME, credentials.NONCE, credentials.SIGNATURE):
        assert header in text
    assert f"at least {credentials.MIN_KEY_BYTES} bytes and at most {credentials.MAX_KEY_BYTES}" in text
    assert twin_name(1002) in text
    assert f"used for {resolver.FRESH_SECONDS / 60:g} minutes" in words(section("Host addresses", "Ss"))


def test_the_signature_is_made_as_documented() -> None:
    import hashlib
    import hmac

    stamp = credentials.SignatureHeaders(1001, 1_795_000_000, "0" * 32, "")
    lines = ["sbus-relay-2", "POST", "/zbus-remote", "1001", "1002", "1795000000", "0" * 32, hashlib.sha256(b"{}").hexdigest()]
    made = hmac.new(b"k" * 16, "\n".join(lines).encode(), "sha256").hexdigest()
    assert credentials.request_signature(b"k" * 16, stamp, 1002, "/zbus-remote", b"{}") == made
    lines = ["sbus-relay-2", "response", "0" * 32, made, "200", hashlib.sha256(b"{}").hexdigest()]
    made = hmac.new(b"k" * 16, "\n".join(lines).encode(), "sha256").hexdigest()
    signed = dataclasses.replace(stamp, signature=lines[3])
    assert credentials.response_signature(b"k" * 16, signed, 200, b"{}") == made


def test_every_event_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section("LOG MESSAGES"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {event.name for event in MESSAGES}
    assert f"logged once in {QUIET_SECONDS:g} s" in words(section("LOG MESSAGES"))


def test_the_status_and_the_example_are_right(tmp_path: Path) -> None:
    assert f"{os.EX_CONFIG} The configuration is invalid" in words(section("EXIT STATUS"))
    (tmp_path / "x.toml").write_text(section("EXAMPLES").split("-offset indent\n")[1].split("\n.Ed")[0])
    settings = read_settings([tmp_path / "x.toml"], RelaySettings)
    assert settings.is_authenticated
    assert [(peer.twin, peer.address) for peer in settings.peers] == [(1002, "10.0.0.2:8051")]


def test_the_rules_that_the_page_speaks_of_are_about_its_keys(tmp_path: Path) -> None:
    """tests/integration/relay/test_bus_users.py tests their effect."""
    rules = ROOT / "etc" / "sbusd.toml.d" / "50-relay.toml"
    assert f".Pa /usr/lib/sbus/sbusd.toml.d/{rules.name}" in section("On the bus", "Ss")
    (tmp_path / "x.toml").write_text(rules.read_text().replace('"sbus-relay"', "4711"))
    policy = load_daemon_settings(tmp_path / "x.toml", required=True).policy
    assert {rule.keys for rule in policy} == {ATTEMPT_KEY, RELAY_HEAD.decode(), RELAYED_HEAD.decode()}
    for keys in {rule.keys for rule in policy}:
        *allowing, last = (rule for rule in policy if rule.keys == keys)
        assert allowing
        assert all(rule.users or rule.groups for rule in allowing)
        assert (last.publish, last.users, last.groups) == ("deny", (), ())


def test_the_bounds_on_the_bus_are_documented() -> None:
    text = words(section("On the bus", "Ss"))
    assert f"requests with {show_size(TWIN_BYTES)} for services in progress. At most {AT_ONCE} of one command" in text
    assert f"does not respond for {ASK_SECONDS:g} s is disconnected" in text
    assert ABANDONED_WORDS.format(twin="N", cmd="COMMAND") in text
    rule = section("On the bus", "Ss").split(".Bd -literal -offset indent\n")[1].split("\n.Ed")[0]
    assert tomllib.loads(rule)["policy"][0]["keys"] == relayed_key("hello").decode()


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
    # Other pages may be missing on this machine.
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []


def test_man_has_no_warnings() -> None:
    skips.require_program("man", "man-db")
    done = subprocess.run(["man", "--warnings", "-l", str(PAGE)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stderr == ""
    assert "SEE ALSO" in done.stdout
