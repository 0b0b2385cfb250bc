"""The kernel's limits."""

from __future__ import annotations

import os
import resource

import pytest

from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.limits import check_descriptors, check_packet, judge_descriptors


def test_a_small_packet_can_be_sent() -> None:
    finding = check_packet(1000)
    assert finding.result is CheckResult.OK
    assert "1000 bytes" in finding.reason


def test_a_packet_past_every_limit_is_a_warning_with_the_setting_to_change() -> None:
    finding = check_packet(1 << 28)
    assert finding.result is CheckResult.WARN
    assert finding.advice.startswith(f"sysctl net.core.wmem_max={1 << 28}")


@pytest.mark.parametrize(
    ("limit", "connections", "result"),
    [
        (16_384, 100, CheckResult.OK),
        (16_384, None, CheckResult.OK),
        (1_024, None, CheckResult.WARN),
        (16_384, 15_000, CheckResult.FAIL),
        (1_024, 1_000, CheckResult.FAIL),
        (resource.RLIM_INFINITY, 10, CheckResult.OK),
    ],
)
def test_descriptors(limit: int, connections: int | None, result: CheckResult) -> None:
    assert judge_descriptors(limit, connections).result is result


def test_descriptors_of_a_real_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert check_descriptors(os.getpid(), None) == judge_descriptors(soft, None)


def test_a_process_that_is_not_known_or_gone_is_skipped() -> None:
    assert check_descriptors(None, 3).result is CheckResult.SKIP
    # Above the highest number that the kernel gives, proc(5): /proc/sys/kernel/pid_max.
    assert check_descriptors((1 << 22) + 1, 3).result is CheckResult.SKIP
