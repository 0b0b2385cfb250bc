"""sbus-ship(8) documents every option, key and log message, with the defaults and bounds of the code."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import subprocess
import tomllib
import typing
from pathlib import Path

import typer.main

from sbusd.archive.record.shipped import LIST
from sbusd.archive.storage.location import RemotePath
from sbusd.config.documents import read_settings
from sbusd.config.quantities import Duration, show_duration
from sbusd.config.recorder import RecorderSettings
from sbusd.config.ship import ShipSettings
from sbusd.shipping import main, service
from sbusd.shipping.log_messages import MESSAGES
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-ship.8"


def section(title: str) -> str:
    """Return one section of the page."""
    return PAGE.read_text("utf-8").split(f"\n.Sh {title}\n")[1].split("\n.Sh ")[0]


def words(text: str) -> str:
    """Return text as its reader sees it, on one line and without its macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section("OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (\S+)", item)) for item in items}
    assert documented == offered | {frozenset({"--help"})}


def test_every_key_is_documented_with_its_default_and_bounds() -> None:
    documented = dict(re.findall(r"^\.It Cm (\w+) No = Qq ?(.*)$", section("CONFIGURATION"), re.MULTILINE))
    assert list(documented) == [each.name for each in dataclasses.fields(ShipSettings)]
    hints = typing.get_type_hints(ShipSettings, include_extras=True)
    for field in dataclasses.fields(ShipSettings):
        for spelling in getattr(hints[field.name], "__metadata__", ()):
            assert spelling.parse(documented[field.name]) == field.default
            if isinstance(spelling, Duration):
                least = show_duration(spelling.least) if spelling.least else "0s"
                assert f"{least} to {show_duration(spelling.most)}" in words(section("CONFIGURATION"))
    assert documented["destination"] == ShipSettings().destination


def test_the_examples_are_right(tmp_path: Path) -> None:
    ship, recorder = re.findall(r"-offset indent\n(.*?)\n\.Ed", section("EXAMPLES"), re.DOTALL)
    (tmp_path / "ship.toml").write_text(ship)
    (tmp_path / "recorder.toml").write_text(recorder)
    settings = read_settings([tmp_path / "ship.toml"], ShipSettings)
    assert main._destination(settings) == RemotePath("s3", "records", "fleet")
    assert read_settings([tmp_path / "recorder.toml"], RecorderSettings).shipped == f"{settings.state}/{LIST}"
    assert tomllib.loads(ship)["retention"] == "365d"


def test_the_command_of_a_claim_runs_as_the_service_does() -> None:
    (text,) = re.findall(r"^# systemd-run (.*?)\n# ", section("EXAMPLES"), re.MULTILINE | re.DOTALL)
    command = shlex.split(text.replace("\\e\n", ""))
    assert command[-2:] == ["/usr/bin/sbus-ship", "--claim"]
    properties = {following for place, following in itertools.pairwise(command) if place == "-p"}
    unit = (ROOT / "units" / "system" / "sbus-ship.service").read_text().splitlines()
    assert len(properties) == 6
    assert properties <= set(unit)


def test_the_drop_ins_change_what_the_unit_has() -> None:
    drop_ins = re.findall(r"-offset indent\n(\[.*?)\n\.Ed", section("CONFIGURATION"), re.DOTALL)
    assert len(drop_ins) == 3
    unit = (ROOT / "units" / "system" / "sbus-ship.service").read_text()
    keys = {line.partition("=")[0] for text in drop_ins for line in text.splitlines() if not line.startswith("[")}
    assert {key for key in keys if f"\n{key}=" not in unit} == {"RequiresMountsFor", "ReadWritePaths"}
    assert "\nRestartPreventExitStatus=2 78\n" in unit


def test_every_message_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section("LOG MESSAGES"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {message.name for message in MESSAGES}


def test_the_delays_are_documented() -> None:
    text = words(PAGE.read_text("utf-8"))
    most = f"{service.LONGEST_DELAY_SECONDS / 60:g} minutes"
    assert f"at most {service.FIRST_DELAY_SECONDS:g} second, which doubles with each failure up to {most}." in text


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []
    assert [line for line in PAGE.read_text().splitlines() if len(line) > 80] == []
