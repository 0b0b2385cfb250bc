"""Which connections are admitted, and how many."""

from __future__ import annotations

import os

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_programs.socket_owner import OVERFLOW_UID
from sbus_programs.systemd.log_records import LimitedLog, Record
from sbus_services.web.loopback import MAX_CONNECTIONS, Admission


class Sink:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, record: Record) -> None:
        self.texts.append(record.text)

    def close(self) -> None:
        pass


def test_only_the_own_user_and_root_are_admitted() -> None:
    sink = Sink()
    admission = Admission(LimitedLog("sbus-web", sink))
    assert admission.admit(os.geteuid())
    assert admission.admit(0)
    for user in (os.geteuid() + 1, OVERFLOW_UID, None):
        assert not admission.admit(user)
    assert (admission.open, admission.of_others) == (2, 3)
    assert any("user unknown" in text for text in sink.texts)


def test_all_ids_of_a_user_have_the_log_records_of_one() -> None:
    sink, charged = Sink(), ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, 1_001)]))
    admission = Admission(LimitedLog("sbus-web", sink), charged.of)
    for user in (*range(100_000, 100_100), 1_001, 1_002):
        assert not admission.admit(user)
    assert admission.of_others == 102
    assert [word for text in sink.texts for word in ("100000", "1002") if f"user {word}" in text] == ["100000", "1002"]
    assert len(sink.texts) == 2


def test_the_number_of_connections_is_limited() -> None:
    sink = Sink()
    admission = Admission(LimitedLog("sbus-web", sink))
    assert [admission.admit(0) for _ in range(MAX_CONNECTIONS + 1)] == [True] * MAX_CONNECTIONS + [False]
    admission.leave()
    assert admission.admit(0)
    assert str(MAX_CONNECTIONS) in sink.texts[0]
