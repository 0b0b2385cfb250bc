"""The checks of the link to other hosts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sbus_programs.config.certificates import validity_of
from sbus_programs.config.relay import REDIS
from sbusctl.checks import CheckResult
from sbusctl.checks import hosts as checks
from sbusctl.checks.hosts import DAY, check_link_settings, check_relay, is_link_configured, judge_certificate, judge_link, no_link
from tests.support.authority import Authority

OK, WARN, FAIL, SKIP = CheckResult.OK, CheckResult.WARN, CheckResult.FAIL, CheckResult.SKIP


def state(**network: object) -> dict[str, Any]:
    """Return the state of a connected link, changed by *network*."""
    base = {"connected": True, "encrypted": True, "server": "tls://nats-1:4222", "server_version": "2.12.7"}
    return {"transport": "nats", "network": base | network}


@pytest.mark.parametrize(
    ("network", "results"),
    [
        ({}, [("link", OK), ("nats-server", OK)]),
        ({"connected": False, "last_error": "Connection refused"}, [("link", WARN)]),
        ({"server_version": "2.11.16"}, [("link", OK), ("nats-server", OK)]),
        ({"server_version": "2.11.15"}, [("link", OK), ("nats-server", WARN)]),
        ({"server_version": "2.9.10"}, [("link", OK), ("nats-server", WARN)]),
        ({"server_version": "2.12.6"}, [("link", OK), ("nats-server", WARN)]),
        ({"server_version": "3.0.0"}, [("link", OK), ("nats-server", OK)]),
        ({"server_version": "dev"}, [("link", OK), ("nats-server", SKIP)]),
        ({"encrypted": False}, [("link", OK), ("nats-server", OK), ("link TLS", WARN)]),
        ({"encrypted": False, "server": "nats://127.0.0.1:4222"}, [("link", OK), ("nats-server", OK)]),
        ({"encrypted": False, "server": "nats://localhost"}, [("link", OK), ("nats-server", OK)]),
        ({"server": "", "server_version": ""}, [("link", OK)]),
    ],
)
def test_a_state_is_judged(network: dict[str, object], results: list[tuple[str, CheckResult]]) -> None:
    assert [(each.check, each.result) for each in judge_link(state(**network))] == results


def test_the_reason_of_a_lost_connection_is_shown() -> None:
    (finding,) = judge_link(state(connected=False, last_error="Connection refused"))
    assert finding.reason == "not connected: Connection refused"
    assert judge_link({})[0].result is WARN
    (off,) = no_link({}, "no link on this bus")
    assert (off.result, off.advice) == (WARN, "start it: systemctl enable --now sbus-link.service")
    (failed,) = no_link({"ActiveState": "failed"}, "no link on this bus")
    assert failed.advice.endswith(": systemctl reset-failed sbus-link.service; systemctl restart sbus-link.service")


def test_a_configuration_and_its_rules_are_checked(tmp_path: Path) -> None:
    link, bus = tmp_path / "link.toml", tmp_path / "sbusd.toml"
    assert not is_link_configured(link)
    link.write_text('# realm = "R"\n')
    assert not is_link_configured(link)
    link.write_text('realm = "R"\n')
    bus.write_text("")
    assert is_link_configured(link)
    assert [each.result for each in check_link_settings(link, bus)] == [OK, FAIL]
    (tmp_path / "sbusd.toml.d").mkdir()
    (tmp_path / "sbusd.toml.d" / "50-link.toml").write_text("")
    assert [each.result for each in check_link_settings(link, bus)] == [OK, OK]
    link.write_text("realm = 5\n")
    assert is_link_configured(link)
    assert check_link_settings(link, bus)[0].result is FAIL


RUNNING = {"LoadState": "loaded", "ActiveState": "active"}


def test_a_relay_without_its_redis_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(f'twin = 1\nredis = "{tmp_path}/gone.sock"\n')
    (finding,) = checks.check_relay(RUNNING, file)
    assert (finding.check, finding.result) == ("relay Redis", CheckResult.FAIL)
    assert finding.reason.startswith("calls between hosts wait: ")
    assert "systemctl start redis-server@sbus-relay.service" in finding.advice
    assert checks.check_relay({**RUNNING, "ActiveState": "failed"}, file) == [], "the unit has a finding of its own"
    assert checks.check_relay({}, file) == []


def test_only_root_and_the_relay_use_its_own_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert [each.result for each in checks.check_redis(REDIS)] == [CheckResult.SKIP]


def test_a_wrong_configuration_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text("twin = true\n")
    assert [each.check for each in checks.check_relay(RUNNING, tmp_path / "relay.toml")] == ["relay.toml"]
    (finding,) = checks.check_relay({"LoadState": "not-found"}, tmp_path / "relay.toml")
    assert finding.result is CheckResult.SKIP
    assert "configuration without the package" in finding.reason


pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("left", "result", "says"),
    [
        (15.0, CheckResult.OK, "ends in 15 days, on DATE"),
        (13.9, CheckResult.WARN, "ends in 14 days, on DATE; other hosts reject it then"),
        (0.5, CheckResult.WARN, "ends in 12.0 h"),
        (-3.0, CheckResult.FAIL, "ended 3 days ago, on DATE; other hosts reject it"),
        (31.0, CheckResult.FAIL, "is not valid yet: it begins in 24.0 h"),
    ],
)
def test_the_days_that_are_left_are_judged(authority: Authority, left: float, result: CheckResult, says: str) -> None:
    file = authority.sign("alpha", days=30).certificate
    validity = validity_of(file)
    assert validity is not None
    found = judge_certificate("link certificate", "sbus-link", file, lambda: validity[1] - left * DAY)
    says = says.replace("DATE", datetime.fromtimestamp(validity[1], UTC).date().isoformat())
    assert (found.result, says in found.reason) == (result, True)


def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    assert judge_certificate("link certificate", "sbus-link", tmp_path / "none").result is CheckResult.SKIP


def test_the_certificates_of_link_and_relay_are_checked(authority: Authority, tmp_path: Path) -> None:
    tls = authority.settings(authority.sign("alpha"))  # for two days
    link, relay = tmp_path / "link.toml", tmp_path / "relay.toml"
    link.write_text(f'realm = "R"\n{tls}')
    relay.write_text(f"twin = 1\n{tls}")
    found = [each for each in check_link_settings(link, tmp_path / "sbusd.toml") + check_relay({}, relay) if "certificate" in each.check]
    assert [(each.check, each.result) for each in found] == [
        ("link certificate", CheckResult.WARN),
        ("relay certificate", CheckResult.WARN),
    ]
    assert [each.result for each in check_relay({"LoadState": "not-found"}, relay)] == [CheckResult.SKIP]
    relay.write_text("twin = 1\n")
    assert check_relay({}, relay) == []
