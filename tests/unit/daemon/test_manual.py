"""sbusd(8) documents every option, sbusd.toml(5) every key, with the defaults and bounds of the code, and no other."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tomllib
import typing
from pathlib import Path

import pytest

from sbusd.broker import log
from sbusd.broker.quotas import LEAST_DESCRIPTORS
from sbusd.config.documents import ORIGIN, read_settings
from sbusd.config.quantities import Count, Duration, Size, show_duration, show_size
from sbusd.config.rules import MAX_COMMENT_CHARACTERS, MAX_PUBLISH_RULES, MAX_RULES, PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import LEVELS, DaemonSettings, LimitSettings, LogSettings, QuotaSettings, RateSettings
from sbusd.daemon import options
from sbusd.systemd import log_records, service_manager
from tests.support import skips
from tools.stage import ROOT

PROGRAM, FORMAT = ROOT / "man" / "sbusd.8", ROOT / "man" / "sbusd.toml.5"

SAMPLE = ROOT / "etc" / "sbusd.toml"


def _section(page: Path, title: str) -> str:
    """Return one section of a page, its lines joined as a reader sees them."""
    return page.read_text("utf-8").split(f"\n.Sh {title}\n")[1].split("\n.Sh ")[0]


def _help() -> str:
    """Return what --help prints."""
    return options._parser().format_help()


def _documented_keys() -> dict[str, object]:
    """Return the keys of sbusd.toml(5), without their tables, and the default that each item's head states."""
    keys = {}
    for line in re.findall(r"^\.It Cm (\w+ No = .*)$", FORMAT.read_text("utf-8"), re.MULTILINE):
        key, _, value = line.partition(" No = ")
        value = re.sub(r"Qo (\S+) Qc", r'"\1"', value)
        value = re.sub(r"^Qq ?(.*)$", r'"\1"', value)
        keys[key] = tomllib.loads(f"x = {value}")["x"]
    return keys


def _plain(settings: object) -> dict[str, object]:
    """Return the leaves of *settings*, with a rate or some subjects as the one key that they are written as."""
    found: dict[str, object] = {}
    for each in dataclasses.fields(typing.cast(typing.Any, settings)):
        value = getattr(settings, each.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, RateSettings | Subjects):
            found |= _plain(value)
        else:
            found[each.name] = value
    return found


def test_every_option_is_documented() -> None:
    offered = set(re.findall(r"^  (-\w).*?, (--[\w-]+)", _help(), re.MULTILINE))
    offered |= {("", name) for name in re.findall(r"^  (--[\w-]+)", _help(), re.MULTILINE)}
    items = re.findall(r"^\.It (Fl .*)$", _section(PROGRAM, "OPTIONS"), re.MULTILINE)
    documented = set()
    for item in items:
        *short, long = re.findall(r"Fl (\S+)", item)
        documented.add((f"-{short[0]}" if short else "", f"-{long}"))
    assert len(documented) == len(items)
    assert documented == offered


def test_the_defaults_of_the_options_are_those_documented() -> None:
    text = PROGRAM.read_text("utf-8")
    defaults = options.Options()
    for value in (options.SYSTEM_ADDRESS, str(defaults.pid_file), str(defaults.main_file), str(options.NO_PID_FILE)):
        assert f".Pa {value}" in text
    assert f"add 0{options.GROUP_MODE:03o} to 0{defaults.socket_mode:o}, the mode of the\nsocket." in text
    assert f"add 000{options.OTHERS_MODE:o} to the mode of the socket." in text


def test_the_journals_bounds_are_those_documented() -> None:
    text = " ".join(_section(PROGRAM, "LOG MESSAGES").split())
    assert f"At most {log.MAX_WAITING} records are queued" in text
    assert f"are truncated to {log_records.MAX_FACT_BYTES} bytes" in text


def test_the_pace_of_the_status_and_the_longer_end_are_those_documented() -> None:
    text = " ".join(_section(PROGRAM, "ACTIVATION").split())
    assert f"averaged over at least the last {service_manager.STATUS_SECONDS:.0f} seconds" in text
    assert f"may take up to {service_manager.EXTEND_SECONDS:.0f} seconds even if" in text


def test_the_least_limit_of_descriptors_is_documented() -> None:
    assert f"a limit of descriptors below {LEAST_DESCRIPTORS}," in _section(PROGRAM, "EXIT STATUS")


def test_every_key_is_documented_once_and_no_other() -> None:
    assert list(_documented_keys()) == list(_plain(DaemonSettings()))


def test_the_documented_defaults_are_the_codes(tmp_path: Path) -> None:
    documented = _documented_keys()
    lines = [f"{key} = {_toml(documented[key])}" for key in documented if hasattr(DaemonSettings(), key)]
    for table, kind in (("[limits]", LimitSettings), ("[quotas]", QuotaSettings), ("[log]", LogSettings), ("[rights]", RightsSettings)):
        lines += [table, *(f"{each.name} = {_toml(documented[each.name])}" for each in dataclasses.fields(kind))]
    (tmp_path / "x.toml").write_text("\n".join(lines))
    assert read_settings([tmp_path / "x.toml"], DaemonSettings) == DaemonSettings()


def test_the_keys_of_a_rule_and_their_bounds_are_those_documented() -> None:
    text = FORMAT.read_text("utf-8")
    section = text.split("\n.Ss The [[policy]] tables")[1].split("\n.Ss ")[0]
    documented = [key for line in re.findall(r"^\.It Cm (.+)$", section, re.MULTILINE) for key in line.split(" , ")]
    assert documented == [each.name for each in dataclasses.fields(PolicyRule) if each.name != ORIGIN]
    words = " ".join(section.split())
    assert f"There can be {MAX_RULES} rules, {MAX_PUBLISH_RULES} of them with" in words
    assert f"At most {MAX_COMMENT_CHARACTERS} characters" in words


@pytest.mark.parametrize("settings", [LimitSettings, QuotaSettings, RateSettings])
def test_the_bounds_of_every_quantity_are_documented(settings: type) -> None:
    text = " ".join(FORMAT.read_text("utf-8").split())
    for annotation in typing.get_type_hints(settings, include_extras=True).values():
        for spelling in getattr(annotation, "__metadata__", ()):
            match spelling:
                case Count():
                    assert f"{spelling.least} to {spelling.most}" in text
                case Size():
                    assert f"{show_size(spelling.least)} to {show_size(spelling.most)}" in text
                case Duration():
                    assert f"{show_duration(spelling.least)} to {show_duration(spelling.most)}" in text


def test_every_level_is_documented() -> None:
    assert tuple(re.findall(r"^\.Qq (\w+)(?: [,.])?$", FORMAT.read_text("utf-8"), re.MULTILINE))[-len(LEVELS) :] == LEVELS


def test_the_sample_shows_every_key_with_its_default(tmp_path: Path) -> None:
    shown = re.sub(r"^# (\w+ = )", r"\1", SAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "x.toml").write_text(shown)
    assert read_settings([tmp_path / "x.toml"], DaemonSettings) == DaemonSettings()
    assert set(re.findall(r"^(\w+) = ", shown, re.MULTILINE)) == _plain(DaemonSettings()).keys()
    assert read_settings([SAMPLE], DaemonSettings) == DaemonSettings()


def test_the_examples_of_the_page_are_right(tmp_path: Path) -> None:
    rules, units, others, *_ = (text.partition("\n.Ed")[0] for text in FORMAT.read_text("utf-8").split("-offset indent\n")[1:])
    files = tmp_path / "rules.toml", tmp_path / "units.toml", tmp_path / "others.toml"
    for file, example in zip(files, (rules, units, others), strict=True):
        file.write_text(example.replace('"alice"', '"root"'))
    read = read_settings(files, DaemonSettings)
    assert read.limits.queue_bytes == 128 << 20
    assert [rule.publish for rule in read.policy] == ["allow", "deny"] * 2
    assert [rule.units for rule in read.policy][2:] == [("nginx.service",), ()]


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


def _toml(value: object) -> str:
    """Return *value* as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)
