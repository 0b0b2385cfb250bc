"""sbus-recorder(8) documents every option and key with its default and bounds; sbus-record(5) every column, kind and field of the index."""

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

from sbusd.archive.record.layout import INDEX_VERSION, OTHERS, IndexEntry
from sbusd.archive.record.schema import PARTITION_SCHEMA, SCHEMA, SORT_KEYS, RowKind
from sbusd.archive.record.segments import ROW_GROUP_ROWS
from sbusd.config import load_daemon_settings
from sbusd.config.documents import read_settings
from sbusd.config.quantities import Count, Duration, Size, show_duration, show_size
from sbusd.config.recorder import MAX_PAYLOAD_RULES, PayloadRule, RecorderSettings
from sbusd.protocol.packets import MAX_PACKET_BYTES
from sbusd.recorder import main, retention
from sbusd.recorder.converter import RETRY_SECONDS
from sbusd.recorder.log_messages import MESSAGES
from sbusd.recorder.recording import MAX_BATCH_BYTES, MAX_PATTERNS
from tests.support import skips
from tools.stage import ROOT

PROGRAM, FORMAT = ROOT / "man" / "sbus-recorder.8", ROOT / "man" / "sbus-record.5"


def section(page: Path, title: str, head: str = "Sh") -> str:
    """Return one section of a page."""
    return page.read_text("utf-8").split(f"\n.{head} {title}\n")[1].split(f"\n.{head} ")[0]


def words(text: str) -> str:
    """Return text as its reader sees it, on one line and without its macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def documented_keys() -> dict[str, object]:
    """Return the keys of recorder.toml with the defaults that the page states."""
    keys = {}
    for line in re.findall(r"^\.It Cm (\w+ No = .*)$", section(PROGRAM, "CONFIGURATION"), re.MULTILINE):
        key, _, value = line.partition(" No = ")
        keys[key] = tomllib.loads("x = " + re.sub(r"^Qq ?(.*)$", r'"\1"', value))["x"]
    return keys


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section(PROGRAM, "OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (\S+)", item)) for item in items}
    assert documented == offered | {frozenset({"--help"})}


def test_every_key_is_documented_with_its_default(tmp_path: Path) -> None:
    documented = documented_keys()
    assert list(documented) == [each.name for each in dataclasses.fields(RecorderSettings)]
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in documented.items()]
    (tmp_path / "x.toml").write_text("\n".join(lines))
    assert read_settings([tmp_path / "x.toml"], RecorderSettings) == RecorderSettings()


def test_the_bounds_are_documented() -> None:
    text = words(section(PROGRAM, "CONFIGURATION"))
    for annotation in typing.get_type_hints(RecorderSettings, include_extras=True).values():
        for spelling in getattr(annotation, "__metadata__", ()):
            match spelling:
                case Count():
                    assert f"{spelling.least} to {spelling.most}" in text
                case Size():
                    assert f"{show_size(spelling.least)} to {show_size(spelling.most)}" in text
                case Duration():
                    assert f"{show_duration(spelling.least)} to {show_duration(spelling.most)}" in text
    assert f"at most {show_size(MAX_PACKET_BYTES)}" in text
    assert f"at most {MAX_PAYLOAD_RULES}, each with keys" in text.replace(" ,", ",")
    assert f"no more than {MAX_BATCH_BYTES >> 20} MiB of payloads" in text
    assert {each.name for each in dataclasses.fields(PayloadRule)} == {"keys", "keep", "origin"}


def test_the_example_is_right(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(section(PROGRAM, "EXAMPLES").split("-offset indent\n")[1].split("\n.Ed")[0])
    settings = read_settings([tmp_path / "x.toml"], RecorderSettings)
    assert [(rule.keys, rule.keep) for rule in settings.payloads] == [("camera/", "none"), ("!/conn/", 1024)]


def test_the_rule_that_the_page_speaks_of_lets_the_service_listen(tmp_path: Path) -> None:
    rule = ROOT / "etc" / "sbusd.toml.d" / "50-recorder.toml"
    assert f"/usr/lib/sbus/sbusd.toml.d/{rule.name}" in PROGRAM.read_text()
    (tmp_path / "x.toml").write_text(rule.read_text().replace('"sbus-recorder"', "4711"))
    assert load_daemon_settings(tmp_path / "x.toml", required=True).rights.tap.users == (4711,)


def test_every_event_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section(PROGRAM, "LOG MESSAGES"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {event.name for event in MESSAGES}
    assert f"more than {MAX_PATTERNS} subscriptions" in words(section(PROGRAM, "LOG MESSAGES"))


def test_the_retry_on_a_full_disk_is_documented() -> None:
    assert f"Segments of the archive are retried every {RETRY_SECONDS:g} seconds." in words(section(PROGRAM, "Durability", "Ss"))


def test_the_shares_of_the_disk_are_documented() -> None:
    text = words(section(PROGRAM, "Disk usage per user", "Ss"))
    size = 1 << 40
    assert retention.common_limit(size, 1) == retention.common_limit(size, retention.FEW_USERS) == size // 128
    assert retention.common_limit(size, 100) == size * 3 // 4 // 100 // 3
    assert "The limit is one third of the fair share, and at most 1/128 of the quota" in text
    assert (retention.spool_limit(size, 1), retention.spool_limit(size, size // 4)) == (size // 4, size // 2)
    assert "The write-ahead log can use a quarter of the quota, or twice rotate_bytes if that is more." in text
    assert f"An index entry names at most {retention.MAX_USERS} users." in text
    assert f"the entry names the {retention.MAX_USERS} lowest user ids." in text
    form = words(section(FORMAT, "Index", "Ss"))
    assert f"at most {retention.MAX_USERS} users" in form
    assert f"\\{OTHERS} for a segment of the users beyond the {retention.MAX_USERS} lowest user ids" in form


def test_the_status_is_documented() -> None:
    assert f"{os.EX_CONFIG} An administrator must act" in words(re.sub(r"^\.It ", "", section(PROGRAM, "EXIT STATUS"), flags=re.MULTILINE))


def test_every_column_is_documented_in_its_order() -> None:
    items = re.findall(r"^\.It Cm (\w+) Pq (.+)\n((?:[^.].*\n)+)", section(FORMAT, "Columns", "Ss"), re.MULTILINE)
    fields = [*SCHEMA, *PARTITION_SCHEMA]
    assert [(name, kind) for name, kind, _ in items] == [(field.name, str(field.type)) for field in fields]
    assert [" ".join(doc.split()) for _, _, doc in items] == [(field.metadata or {})[b"doc"].decode() for field in fields]
    never_null = [field.name for field in fields if not field.nullable]
    assert never_null == ["ts", "seq", "kind", "date", "hour", "host"]
    assert "All columns except ts , seq , kind and those three can be null." in words(section(FORMAT, "Columns", "Ss"))


def test_every_kind_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section(FORMAT, "Kinds", "Ss"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {kind.value for kind in RowKind}


def test_every_field_of_the_index_is_documented() -> None:
    text = section(FORMAT, "Index", "Ss")
    items = re.findall(r"^\.It Cm (.*)$", text, re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {each.name for each in dataclasses.fields(IndexEntry)}
    assert f"version {INDEX_VERSION}; a reader" in words(text).replace("Cm ", "")


def test_the_form_of_a_segment_is_documented() -> None:
    text = words(FORMAT.read_text("utf-8"))
    assert "sorted by kind , key , ts and seq" in text
    assert SORT_KEYS == ("kind", "key", "ts", "seq")
    assert f"up to {ROW_GROUP_ROWS} rows" in text


@pytest.mark.parametrize("page", [PROGRAM, FORMAT], ids=lambda page: page.name)
def test_the_page_is_clean(page: Path) -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(page)], capture_output=True, text=True, check=False)
    # Other pages need not be installed on this machine.
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []


@pytest.mark.parametrize("page", [PROGRAM, FORMAT], ids=lambda page: page.name)
def test_man_has_no_warnings(page: Path) -> None:
    skips.require_program("man", "man-db")
    done = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stderr == ""
    assert "SEE ALSO" in done.stdout
