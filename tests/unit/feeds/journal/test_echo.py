"""Which entries the feed omits to avoid a loop, and that users cannot make use of this to hide entries."""

from __future__ import annotations

import pytest

from sbusd.broker import log_messages
from sbusd.feeds.journal import echo
from sbusd.feeds.journal.cursor import Cursor
from sbusd.feeds.journal.entry import JournalEntry

CURSOR = Cursor.parse(f"s={'a' * 32};i=1;b={'b' * 32};m=5;t=10;x=1")
PID, UID = 500, 1000


def is_echo(**fields: bytes) -> bool:
    return echo.is_echo(JournalEntry(CURSOR, fields), PID, UID)


def test_numbers_are_those_of_the_bus() -> None:
    assert log_messages.PACKETS_LOST.id.encode() == echo.PACKETS_LOST
    assert log_messages.QUOTA_REFUSED.id.encode() == echo.QUOTA_REFUSED
    assert log_messages.SUPPRESSED.id.encode() == echo.SUPPRESSED


@pytest.mark.parametrize("unit", [b"sbus.service", b"sbus@lab.service"])
def test_records_that_publishing_causes_are_left_out(unit: bytes) -> None:
    for cause in (echo.PACKETS_LOST, echo.QUOTA_REFUSED, echo.SUPPRESSED):
        assert is_echo(_SYSTEMD_UNIT=unit, MESSAGE_ID=cause)
    assert is_echo(_SYSTEMD_UNIT=unit, MESSAGE_ID=log_messages.POLICY_REFUSED.id.encode(), SBUS_PEER_PID=b"500")


def test_other_records_of_the_bus_are_published() -> None:
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=log_messages.STARTED.id.encode())
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=log_messages.POLICY_REFUSED.id.encode(), SBUS_PEER_PID=b"501")
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service")


@pytest.mark.parametrize("unit", [b"user@1001.service", b"sbus.service.service", b"xsbus.service", b"sbus-feed@journal.service", b""])
def test_nobody_can_have_an_entry_left_out(unit: bytes) -> None:
    forged = {"MESSAGE_ID": echo.PACKETS_LOST, "SBUS_PEER_PID": b"500", "SYSLOG_IDENTIFIER": b"sbusd", "UNIT": b"sbus.service"}
    assert not is_echo(_SYSTEMD_UNIT=unit, _UID=b"1001", **forged)
    assert not is_echo(_SYSTEMD_UNIT=unit, _UID=b"1001", _SYSTEMD_USER_UNIT=b"sbus.service", **forged)


def test_bus_of_the_user_who_runs_the_feed() -> None:
    mine = {"_SYSTEMD_UNIT": b"user@1000.service", "_SYSTEMD_USER_UNIT": b"sbus.service", "MESSAGE_ID": echo.PACKETS_LOST}
    assert is_echo(_UID=b"1000", **mine)
    assert not is_echo(_UID=b"1001", **mine)
