"""The end of a certificate is reported before other hosts reject it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sbusd.config.certificates import validity_of
from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.certificates import DAY, judge_certificate
from sbusd.ctl.checks.link import check_settings
from sbusd.ctl.checks.relay import check_relay
from tests.support.authority import Authority

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
    found = [each for each in check_settings(link, tmp_path / "sbusd.toml") + check_relay({}, relay) if "certificate" in each.check]
    assert [(each.check, each.result) for each in found] == [
        ("link certificate", CheckResult.WARN),
        ("relay certificate", CheckResult.WARN),
    ]
    assert [each.result for each in check_relay({"LoadState": "not-found"}, relay)] == [CheckResult.SKIP]
    relay.write_text("twin = 1\n")
    assert check_relay({}, relay) == []
