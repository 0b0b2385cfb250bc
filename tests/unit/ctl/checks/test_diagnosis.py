"""The diagnosis: whether the bus works, and the cause."""

from __future__ import annotations

from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.diagnosis import judge

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
