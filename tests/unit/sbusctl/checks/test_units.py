"""The states of the units of a bus and of the other packages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sbus.bus_unit import STATUS_HEAD, BusUnit
from sbusctl.checks import CheckResult, Finding, units
from sbusctl.checks.units import ADDONS, Unit, check_bus_units, failure_of, judge_addon, main_process, parse_units, repair_of, shown_units
from tools.stage import ROOT

SYSTEM, OWN = BusUnit("sbus.service", is_user=False), BusUnit("sbus.service", is_user=True)

LOADED = {"Id": "sbus-store.service", "LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}

_SHOWN = """\
Id=sbus.socket
LoadState=loaded
ActiveState=active
UnitFileState=enabled
Result=success

MainPID=4321
Result=success
Id=sbus.service
LoadState=loaded
ActiveState=active
UnitFileState=static
"""


def _judged(shown: dict[str, Unit]) -> list[Finding]:
    """Return the findings for the units of the bus."""
    return [
        units._judge_socket(shown.get("sbus.socket", {}), "sbus.socket", "user"),
        units.judge_service(shown.get("sbus.service", {}), "sbus.service", "user"),
    ]


def test_a_good_state() -> None:
    units = parse_units(_SHOWN)
    assert set(units) == {"sbus.socket", "sbus.service"}
    assert main_process(units["sbus.service"]) == 4321
    assert [finding.result for finding in _judged(units)] == [CheckResult.OK, CheckResult.OK]


@pytest.mark.parametrize(
    ("old", "new", "results"),
    [
        ("LoadState=loaded", "LoadState=not-found", [CheckResult.WARN, CheckResult.WARN]),
        ("ActiveState=active", "ActiveState=failed", [CheckResult.FAIL, CheckResult.FAIL]),
        ("ActiveState=active", "ActiveState=inactive", [CheckResult.WARN, CheckResult.OK]),
        ("UnitFileState=enabled", "UnitFileState=disabled", [CheckResult.WARN, CheckResult.OK]),
        (_SHOWN, "", [CheckResult.WARN, CheckResult.WARN]),
    ],
)
def test_other_states(old: str, new: str, results: list[CheckResult]) -> None:
    found = _judged(parse_units(_SHOWN.replace(old, new)))
    assert [finding.result for finding in found] == results
    assert all(finding.advice for finding in found if finding.result is not CheckResult.OK)


@pytest.mark.slow
def test_a_missing_systemd_is_reported_and_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pid = check_bus_units(SYSTEM, booted=tmp_path / "none")
    assert ([finding.result for finding in found], pid) == ([CheckResult.SKIP], {})
    monkeypatch.setenv("PATH", str(tmp_path))
    found, pid = check_bus_units(SYSTEM, booted=tmp_path)
    assert [finding.reason for finding in found] == ["systemctl is not installed"]
    found, _ = check_bus_units(None, booted=tmp_path)
    assert [finding.result for finding in found] == [CheckResult.SKIP]


def _fake_systemctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a systemctl that runs *script* in front of the path."""
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.slow
def test_systemctl_is_asked_for_the_right_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_systemctl(tmp_path, monkeypatch, f"echo \"$1\" > '{tmp_path}/said'\ncat <<'END'\n{_SHOWN}END")
    found, shown = check_bus_units(OWN, booted=tmp_path)
    assert ([finding.result for finding in found], main_process(shown["sbus.service"])) == ([CheckResult.OK, CheckResult.OK], 4321)
    assert (tmp_path / "said").read_text() == "--user\n"


@pytest.mark.slow
def test_a_failing_service_manager_is_skipped_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_systemctl(tmp_path, monkeypatch, "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    found, shown = check_bus_units(OWN, booted=tmp_path)
    assert shown == {}
    assert [finding.reason for finding in found] == ["systemctl failed: Failed to connect to bus: No medium found"]


def test_a_manager_that_hangs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("systemctl", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    found, _ = check_bus_units(SYSTEM, booted=tmp_path)
    assert [finding.result for finding in found] == [CheckResult.WARN]


def test_a_masked_bus_is_unmasked() -> None:
    for state, option in (("masked", ""), ("masked-runtime", " --runtime")):
        unit = {"LoadState": "masked", "UnitFileState": state}
        advice = f"systemctl unmask{option} sbus.service sbus.socket; systemctl restart sbus.socket"
        for found in (units.judge_service(unit, "sbus.service", "system"), units._judge_socket(unit, "sbus.socket", "system")):
            assert (found.result, found.advice) == (CheckResult.FAIL, advice)


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        ({}, CheckResult.OK),
        ({"ActiveState": "failed", "Result": "exit-code"}, CheckResult.FAIL),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, CheckResult.FAIL),
        ({"ActiveState": "inactive"}, CheckResult.WARN),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, None),
        ({"LoadState": "not-found", "ActiveState": "inactive"}, None),
        ({"LoadState": "masked", "ActiveState": "inactive"}, None),
    ],
)
def test_a_unit_of_another_package_is_judged_by_its_state(changed: dict[str, str], result: CheckResult | None) -> None:
    found = judge_addon(LOADED | changed, "sbus-store.service", "system")
    assert (None if found is None else found.result) is result
    assert found is None or result is CheckResult.OK or found.advice.endswith("systemctl restart sbus-store.service")


@pytest.mark.parametrize("program", ["sbus_archive/recorder", "sbus_archive/shipping"])
def test_a_service_that_doubts_the_date_is_a_warning(program: str) -> None:
    said = f"; {units.DATE_JUMPED}, see the log"
    assert said in (ROOT / program / "service.py").read_text()
    found = judge_addon(LOADED | {"StatusText": f"3 rows, 0 missing{said}"}, "sbus-recorder.service", "system")
    assert found is not None
    assert found.result is CheckResult.WARN
    assert found.reason.startswith("the date jumped: sbus-recorder.service removes nothing")


@pytest.mark.slow
def test_the_reason_of_a_failure_is_its_status_or_the_last_line_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = LOADED | {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "78", "InvocationID": "00ff"}
    assert failure_of(failed | {"StatusText": f"{STATUS_HEAD}no room"}, "system") == "no room"
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\necho 'sbus-store: store.toml: stream.1.key: unknown key'; echo\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert failure_of(failed, "user") == "sbus-store: store.toml: stream.1.key: unknown key (exit-code, status 78)"
    # What a program prints of one error is shown to its end, which says what to do.
    program.write_text(f"#!/bin/sh\necho '{'x' * 600} delete the file'\n")
    assert failure_of(failed, "system").endswith("x delete the file (exit-code, status 78)")
    program.write_text("#!/bin/sh\nexit 1\n")
    assert failure_of(failed, "system") == "exit-code, status 78"


def test_a_start_that_systemd_could_not_do_is_explained() -> None:
    failed = LOADED | {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "217", "InvocationID": ""}
    assert failure_of(failed, "system") == "systemd could not determine or change the user (217/USER)"
    assert "(217/USER)" in units.judge_service(failed, "sbus.service", "system").reason


def test_namespaces_that_a_container_refuses_are_explained() -> None:
    failed = LOADED | {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "226"}
    assert "226/NAMESPACE" in failure_of(failed, "system")
    page = "sbus(7), CONTAINERS"
    assert page in repair_of(failed, "sbus-store.service", "system")
    advice = units.judge_service(failed, "sbus.service", "system").advice
    assert page in advice
    assert advice.endswith("; systemctl start sbus.socket")
    described = (ROOT / "man/sbus.7").read_text().partition(".Sh CONTAINERS")[2].partition("\n.Sh ")[0]
    assert "226/NAMESPACE" in described
    assert page in (ROOT / "packaging/debian/sbusd.README.Debian").read_text()


def test_the_drop_in_for_containers_switches_off_all_namespaces_of_the_units() -> None:
    described = (ROOT / "man/sbus.7").read_text().partition("226/NAMESPACE")[2].partition(".Ed")[0]
    off = set(re.findall(r"^(\w+)=\w+$", described, re.MULTILINE))
    text = "\n".join(path.read_text() for path in (ROOT / "units/system").glob("*.service"))
    assert off == set(re.findall(r"^(Private\w+|ProcSubset|Protect\w+)=", text, re.MULTILINE))


@pytest.mark.parametrize("scope", ["system", "user"])
def test_each_unit_of_the_packages_is_judged(scope: str) -> None:
    shipped = {path.name for path in (ROOT / "units" / scope).iterdir()}
    bus = {name for name in shipped if re.match(r"sbus(?:@|\.)", name)}
    named = {re.sub(r"@(?!sbus).*\.", "@.", name) for found, names in ADDONS.items() if found == scope for name in names}
    assert named == {re.sub(r"@(?!sbus).*\.", "@.", name) for name in shipped - bus}


def test_a_unit_that_the_removal_of_its_package_masked_is_missing() -> None:
    file = Path("/etc/sbus/store.toml")
    for state, word in (("not-found", "is not installed"), ("masked", "is masked")):
        unit = LOADED | {"LoadState": state, "UnitFileState": state}
        assert units.is_missing(unit)
        found = units.without_package("sbus-store", unit, file)
        assert (found.result, found.advice, found.reason.endswith(word)) == (CheckResult.SKIP, "", True)
    assert not units.is_missing(LOADED)
    assert not units.is_missing({})


UNMET = LOADED | {"ActiveState": "inactive", "ConditionResult": "no", "ConditionTimestampMonotonic": "77"}


def test_a_unit_whose_condition_is_not_met_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """``systemctl start`` of it succeeds, and nothing runs."""
    text = (ROOT / "units/system/sbus-ship.service").read_text()
    monkeypatch.setattr(units, "_ask", lambda command: subprocess.CompletedProcess(command, 0, text, ""))
    for unit in (UNMET, UNMET | {"UnitFileState": "static", "TriggeredBy": "sbus-pipeline.timer"}):
        found = judge_addon(unit, "sbus-ship.service", "system")
        assert found is not None
        assert found.reason.endswith("was not met: ConditionPathIsDirectory=/var/lib/sbus-recorder/archive/index")
        assert found.advice.startswith("systemctl enable --now sbus-recorder.service; systemctl restart sbus-ship.service; ")
    text = "[Unit]\nConditionVirtualization=!container\n"
    found = judge_addon(UNMET, "sbus-ship.service", "system")
    assert found is not None
    assert found.advice.endswith("change it in a drop-in, then: systemctl restart sbus-ship.service")


def test_a_unit_that_was_not_started_has_no_unmet_condition() -> None:
    assert not units.has_unmet_condition(UNMET | {"ConditionTimestampMonotonic": "0"})
    assert judge_addon(UNMET | {"UnitFileState": "disabled", "TriggeredBy": ""}, "sbus-ship.service", "system") is None


def test_a_drop_in_replaces_conditions() -> None:
    text = "[Unit]\nConditionPathExists=/a\nCondition=\n# ConditionHost=b\nConditionPathIsDirectory=\nConditionHost = |!c\n"
    assert units.conditions_in(text) == ["ConditionHost = |!c"]


def test_units_are_not_known_without_a_scope() -> None:
    assert isinstance(shown_units(None), Finding)
