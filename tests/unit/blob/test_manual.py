"""sbus-blob(8) and blob.toml(5) document every option and key with its default and bounds, every request, cause and log message."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing

import typer.main

from sbusd.blob import main
from sbusd.blob.handlers import PAGE as LIST_PAGE
from sbusd.blob.log_messages import MESSAGES
from sbusd.blob.registry import GUESS_SECONDS
from sbusd.blob.requests import _MEMBERS, FATAL, Cause
from sbusd.blob.service import LEAST_DESCRIPTORS, PAUSING_PART, SPARE_DESCRIPTORS
from sbusd.config.blob import BlobQuotas, BlobSettings
from sbusd.config.documents import parse, settings_of
from sbusd.config.files import PACKAGE_FOLDER
from sbusd.config.quantities import Count, Duration, Size, show_duration, show_size
from sbusd.config.settings import DaemonSettings
from sbusd.protocol.blobs import DEFAULT_EXPIRE, DEFAULT_TYPE, MAX_EXPIRE, MAX_PASS_EXPIRE, MAX_REQUEST_BYTES
from sbusd.systemd.log_records import QUIET_SECONDS
from tools.stage import ROOT

PAGE, CONFIGURATION = ROOT / "man" / "sbus-blob.8", ROOT / "man" / "blob.toml.5"
SAMPLE = ROOT / "etc" / "blob.toml"
UNIT = ROOT / "units" / "system" / "sbus-blob.service"
RULES = ROOT / "etc" / "sbusd.toml.d" / "50-blob.toml"


def section(title: str, page: str = "", head: str = "Sh") -> str:
    """Return one section of a page."""
    text = page or PAGE.read_text("utf-8")
    return re.split(r"\n\.S[hs] ", text.split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def keys() -> str:
    """Return what blob.toml(5) says of the keys."""
    return section("KEYS", CONFIGURATION.read_text("utf-8"))


def parsed(text: str) -> BlobSettings:
    """Return the settings in *text*."""
    return settings_of([(SAMPLE, tomllib.loads(text))], BlobSettings)


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section("OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (-?\w[\w-]*)", item)) for item in items}
    assert documented == {each - {"--help"} for each in offered} - {frozenset()}


def test_every_key_is_documented_with_its_default() -> None:
    items = re.findall(r"^\.It Cm (\w+) No = (.*)$", keys(), re.MULTILINE)
    quotas = {field.name for field in dataclasses.fields(BlobQuotas)}
    names = [name for name, _ in items]
    assert [name for name in names if name not in quotas and name != "pass"] == [field.name for field in dataclasses.fields(BlobSettings)]
    assert [name for name in names if name in quotas] == [field.name for field in dataclasses.fields(BlobQuotas)]
    shown = {name: re.sub(r"^Qq ?(.*)$", r'"\1"', value) for name, value in items}
    top = "".join(f"{name} = {value}\n" for name, value in shown.items() if name not in quotas and name != "pass")
    inner = ", ".join(f"{name} = {shown[name]}" for name in names if name in quotas)
    assert parsed(top) == BlobSettings()
    assert parsed(f"quotas = {{ {inner} }}\nrights = {{ pass = {shown['pass']} }}") == BlobSettings()


def test_the_bounds_are_documented() -> None:
    text = words(keys())
    found = 0
    for table in (BlobSettings, BlobQuotas):
        for name, annotation in typing.get_type_hints(table, include_extras=True).items():
            for spelling in getattr(annotation, "__metadata__", ()):
                if isinstance(spelling, Count):
                    assert f"{spelling.least} to {spelling.most}" in text, name
                elif isinstance(spelling, Size):
                    assert f"{show_size(spelling.least)} to {show_size(spelling.most)}" in text, name
                elif isinstance(spelling, Duration):
                    assert f"{show_duration(spelling.least)} to {show_duration(spelling.most)}" in text, name
                else:
                    continue
                found += 1
    assert found == 8
    assert f"unknown tickets within {GUESS_SECONDS:g} seconds" in text


def test_the_sample_shows_every_key_with_its_default() -> None:
    text = SAMPLE.read_text("utf-8")
    shown = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert parsed(shown) == parsed(text) == BlobSettings()
    assert list(tomllib.loads(shown)) == [field.name for field in dataclasses.fields(BlobSettings)]
    example = parsed("\n".join(re.findall(r"^#     (.*)$", text, re.MULTILINE)).replace('groups = ["video"]', "groups = [44]"))
    assert (example.quotas.bytes, example.rights.passing.users, example.rights.passing.groups) == (1 << 30, (0,), (44,))


def test_the_rules_of_all_packages_together_give_each_service_its_rights() -> None:
    users = {"sbus-blob": 61, "sbus-link": 62, "sbus-store": 63}
    tables = []
    for path in sorted(RULES.parent.glob("50-*.toml")):
        text = re.sub(r'"(sbus-[a-z]+)"', lambda found: str(users.get(found[1], 0)), path.read_text("utf-8"))
        tables.append((PACKAGE_FOLDER / "sbusd.toml.d" / path.name, parse(text)))
    rights = settings_of(tables, DaemonSettings).rights
    assert set(rights.presence.users) == set(users.values())
    assert set(rights.vouch.users) == {62, 63}
    assert set(rights.deliver.users) == {63}


def test_every_request_and_member_is_documented() -> None:
    text = section("Requests", head="Ss")
    named = re.findall(r"^\.It Cm (\w+)$", text, re.MULTILINE)
    assert [name for name in named if name in _MEMBERS] == list(_MEMBERS)
    for name, members in _MEMBERS.items():
        part = text.split(f".It Cm {name}\n", 1)[1]
        assert all(f".Cm {member}" in part or f".It Cm {member}" in part for member in members), name
    shown = words(text)
    assert f"at most {MAX_EXPIRE:g}; the default is {DEFAULT_EXPIRE:g}" in shown
    assert f"of at most {MAX_PASS_EXPIRE:g}" in shown
    assert DEFAULT_TYPE in shown
    assert f"at most {LIST_PAGE}" in shown
    assert f"at most {MAX_REQUEST_BYTES} bytes" in words(section("PROTOCOL"))


def test_every_cause_is_documented_with_its_code() -> None:
    text = section("Errors", head="Ss")
    found = dict.fromkeys(FATAL, "")
    for part in re.split(r"^\.It Cm ", text, flags=re.MULTILINE)[1:]:
        names, _, rest = part.partition("\n")
        for name in names.split(" , "):
            (cause,) = [each for each in Cause if each.counter == name]
            found[cause] = rest
    assert set(found) == set(Cause)
    for cause, rest in found.items():
        assert rest.startswith(f"{cause.code}."), cause


def test_every_log_message_is_documented() -> None:
    text = section("LOG MESSAGES")
    named = [name for names in re.findall(r"^\.It Cm (.*)$", text, re.MULTILINE) for name in names.split(" , ")]
    assert named == [message.name for message in MESSAGES]
    assert f"once in {QUIET_SECONDS:g} s" in words(text)


def test_the_room_for_descriptors_is_documented() -> None:
    text = words(section("Before Linux 6.16", head="Ss"))
    assert f"The room is the limit of descriptors without {SPARE_DESCRIPTORS}." in text
    (limit,) = re.findall(r"^LimitNOFILE=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert f"With the limit of the units, {limit}, half of it is {(int(limit) - SPARE_DESCRIPTORS) // PAUSING_PART}." in text


def test_the_least_limit_of_descriptors_is_documented() -> None:
    assert f"the limit of descriptors is below {LEAST_DESCRIPTORS};" in words(section("EXIT STATUS"))


def test_the_page_has_the_usual_sections() -> None:
    titles = re.findall(r"^\.Sh (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert titles[:4] == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"]
    assert titles[-3:] == ["EXIT STATUS", "EXAMPLES", "SEE ALSO"]
    assert all(len(line) <= 80 for page in (PAGE, CONFIGURATION) for line in page.read_text("utf-8").splitlines())
