"""The check of the Redis of the relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.config.relay import REDIS
from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks import relay as checks

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
