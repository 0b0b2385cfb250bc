"""The checks of the link to other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.link import check_settings, is_configured, judge_state, no_link

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
    assert [(each.check, each.result) for each in judge_state(state(**network))] == results


def test_the_reason_of_a_lost_connection_is_shown() -> None:
    (finding,) = judge_state(state(connected=False, last_error="Connection refused"))
    assert finding.reason == "not connected: Connection refused"
    assert judge_state({})[0].result is WARN
    (off,) = no_link({}, "no link on this bus")
    assert (off.result, off.advice) == (WARN, "start it: systemctl enable --now sbus-link.service")
    (failed,) = no_link({"ActiveState": "failed"}, "no link on this bus")
    assert failed.advice.endswith(": systemctl reset-failed sbus-link.service; systemctl restart sbus-link.service")


def test_a_configuration_and_its_rules_are_checked(tmp_path: Path) -> None:
    link, bus = tmp_path / "link.toml", tmp_path / "sbusd.toml"
    assert not is_configured(link)
    link.write_text('# realm = "R"\n')
    assert not is_configured(link)
    link.write_text('realm = "R"\n')
    bus.write_text("")
    assert is_configured(link)
    assert [each.result for each in check_settings(link, bus)] == [OK, FAIL]
    (tmp_path / "sbusd.toml.d").mkdir()
    (tmp_path / "sbusd.toml.d" / "50-link.toml").write_text("")
    assert [each.result for each in check_settings(link, bus)] == [OK, OK]
    link.write_text("realm = 5\n")
    assert is_configured(link)
    assert check_settings(link, bus)[0].result is FAIL
