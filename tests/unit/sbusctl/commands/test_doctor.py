"""The doctor's page and status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.checks import CheckResult, Finding, services
from sbusctl.commands import doctor
from sbusctl.commands.doctor import examine, judge, lines
from sbusctl.settings import Settings

_FINDINGS = [
    Finding("socket", CheckResult.OK, "mode 0666"),
    Finding("connection", CheckResult.FAIL, "refused\x1b", "start it"),
    Finding("version", CheckResult.WARN, "differs", "upgrade"),
]


def test_the_page() -> None:
    assert lines(_FINDINGS, legend=True, color=False, width=None) == [
        "ok    socket      mode 0666",
        r"fail  connection  refused\x1b",
        "                  -> start it",
        "warn  version     differs",
        "                  -> upgrade",
        "",
        "3 checks, 1 failed, 1 warning.",
    ]
    assert len(lines(_FINDINGS, legend=False, color=False, width=None)) == 5


def test_long_lines_are_wrapped_on_a_terminal() -> None:
    found = [Finding("configuration", CheckResult.WARN, "the word " * 20, "run: " + "x" * 90), Finding("socket", CheckResult.OK, "fine")]
    page = lines(found, legend=False, color=False, width=80)
    assert all(len(line) <= 80 for line in page if "xxx" not in line)
    assert page[0].startswith("warn  configuration  the word the word")
    assert page[1].startswith(" " * 21 + "word")
    assert page[-3:] == [" " * 21 + "-> run:", " " * 24 + "x" * 90, "ok    socket         fine"]
    assert len(lines(found, legend=False, color=False, width=None)) == 3


def test_colour_is_for_terminals() -> None:
    page = lines(_FINDINGS, legend=False, color=True, width=None)
    assert page[0].startswith("\x1b[32mok")
    assert "\x1b" not in "".join(lines(_FINDINGS, legend=False, color=False, width=None))


def test_without_a_bus_it_fails_with_advice(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["doctor", "--json=short", "-a", f"{tmp_path}/none"])
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    failed = {each["check"]: each for each in said["checks"] if each["result"] == "fail"}
    assert set(failed) == {"socket", "connection"}
    assert said["failed"] == 2
    assert all(each["advice"] for each in failed.values())


def test_it_checks_the_configuration_of_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Finding("blob.toml", CheckResult.FAIL, "wrong", "correct it")
    monkeypatch.setattr(doctor, "_scope", lambda address: "user")
    monkeypatch.setattr(services, "check_files", lambda scope: [wrong])
    assert wrong in examine(Settings(address=f"{tmp_path}/none"))


def test_a_user_s_bus_without_a_login_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    first, *_ = examine(Settings(scope="user"))
    assert (first.check, first.result) == ("address", CheckResult.FAIL)
    assert "XDG_RUNTIME_DIR" in first.reason


def test_advice_is_empty_where_nothing_is_to_be_done() -> None:
    assert Finding("socket", CheckResult.OK, "fine").advice == ""
    assert [result.value for result in CheckResult] == ["ok", "warn", "fail", "skip"]


GOOD = [Finding(name, CheckResult.OK, "fine") for name in ("address", "socket", "connection", "protocol", "configuration")]


def test_a_bus_that_works_has_no_cause() -> None:
    diagnosis = judge([*GOOD, Finding("descriptors", CheckResult.SKIP, "unknown")])
    assert (diagnosis.works, diagnosis.cause, diagnosis.text) == (True, None, "the bus works")


def test_causes_precede_consequences() -> None:
    found = [
        Finding("packets", CheckResult.WARN, "small"),
        Finding("connection", CheckResult.FAIL, "refused"),
        Finding("sbus.socket", CheckResult.FAIL, "failed"),
        Finding("sbus.service", CheckResult.FAIL, "failed"),
        Finding("configuration", CheckResult.FAIL, "unknown key", "correct it"),
    ]
    diagnosis = judge(found)
    assert diagnosis.cause == found[4]
    assert diagnosis.text == "the bus does not work: configuration: unknown key (4 further problems below)"
    assert judge(found[:4]).cause == found[3]


def test_a_failure_precedes_a_warning_about_a_cause() -> None:
    found = [Finding("sbus.socket", CheckResult.WARN, "not enabled"), Finding("link rules", CheckResult.FAIL, "missing")]
    diagnosis = judge([*GOOD, *found])
    assert diagnosis.text == "the bus works, but link rules: missing (1 further problem below)"


def test_a_bus_that_was_not_reached_does_not_work() -> None:
    assert not judge([Finding("connection", CheckResult.OK, "accepts"), Finding("protocol", CheckResult.FAIL, "not sbusd")]).works
    assert not judge([]).works
