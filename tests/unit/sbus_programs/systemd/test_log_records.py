"""The fields and the line of a record, where it is written, and the log of a service."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sbus_programs.systemd import log_records
from sbus_programs.systemd.log_records import (
    MAX_CAUSES,
    MAX_FACT_BYTES,
    QUIET_SECONDS,
    JournalSink,
    LimitedLog,
    LogMessage,
    LogSink,
    Priority,
    Record,
    ServiceLog,
    StandardErrorSink,
    choose_sink,
    journal_datagram,
    journal_fields,
    standard_error_line,
)
from sbus_services.relay.log_messages import AUTHENTICATION_FAILED
from sbusd.broker.log_messages import INTERNAL_ERROR, SECRET_REFUSED, STARTED

RECORD = Record(
    SECRET_REFUSED, uid=1000, pid=77, connection=5, key=b"!/cred//0//\n\xff", facts={"reason": "not\nyours", "count": 2}, trace="line\nline"
)

SUSPENDED = LogMessage("0" * 32, Priority.ERR, "suspended", "suspended: {reason}; times: {count}")


def parse(datagram: bytes) -> dict[str, bytes]:
    """Return the fields of *datagram*, read as journald does."""
    fields = {}
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + length], rest[8 + length :]
            assert rest.startswith(b"\n")
            rest = rest[1:]
        fields[name.decode()] = value
        datagram = rest
    return fields


def test_the_journal_gets_every_fact_in_a_field() -> None:
    assert journal_fields(RECORD, "sbusd") == {
        "MESSAGE": rb"rejected subscription to a private key: not\x0ayours",
        "MESSAGE_ID": SECRET_REFUSED.id.encode(),
        "PRIORITY": b"5",
        "SYSLOG_IDENTIFIER": b"sbusd",
        "SBUS_EVENT": b"secret-refused",
        "SBUS_PEER_UID": b"1000",
        "SBUS_PEER_PID": b"77",
        "SBUS_CONNECTION": b"5",
        "SBUS_KEY": b"!/cred//0//\n\xff",
        "SBUS_REASON": b"not\nyours",
        "SBUS_COUNT": b"2",
        "SBUS_TRACEBACK": b"line\nline",
    }


def test_the_unit_of_a_client_is_a_field_if_it_is_in_one() -> None:
    for unit, expected in (("web.service", b"web.service"), ("", None), (None, None)):
        assert journal_fields(Record(STARTED, 1000, 77, unit=unit), "sbusd").get("SBUS_PEER_UNIT") == expected


def test_an_unknown_value_has_no_field() -> None:
    assert journal_fields(Record(STARTED, facts={"address": "a", "version": "1"}), "sbusd").keys() == {
        "MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER", "SBUS_EVENT", "SBUS_ADDRESS", "SBUS_VERSION",
    }  # fmt: skip


def test_the_user_0_and_the_empty_key_are_known() -> None:
    fields = journal_fields(Record(SECRET_REFUSED, uid=0, pid=0, connection=0, key=b""), "sbusd")
    assert (fields["SBUS_PEER_UID"], fields["SBUS_KEY"]) == (b"0", b"")


def test_no_value_can_forge_a_field() -> None:
    record = Record(SECRET_REFUSED, uid=1000, key=b"x\nMESSAGE=forged\nSBUS_PEER_UID=0", facts={"reason": b"\nPRIORITY=0\n\n"})
    assert parse(journal_datagram(record, "sbusd")) == journal_fields(record, "sbusd")
    assert parse(journal_datagram(record, "sbusd"))["SBUS_PEER_UID"] == b"1000"


def test_no_fact_can_replace_a_field() -> None:
    fields = journal_fields(Record(SECRET_REFUSED, uid=1000, facts={"peer_uid": 0, "event": "x", "reason": "y"}), "sbusd")
    assert (fields["SBUS_PEER_UID"], fields["SBUS_EVENT"]) == (b"1000", b"secret-refused")


def test_a_record_can_have_another_priority() -> None:
    assert journal_fields(Record(SECRET_REFUSED, priority=Priority.DEBUG), "sbusd")["PRIORITY"] == b"7"


def test_text_that_is_not_unicode_is_escaped() -> None:
    assert journal_fields(Record(SECRET_REFUSED, facts={"reason": "\ud800"}), "sbusd")["SBUS_REASON"] == rb"\ud800"


def test_standard_error_gets_one_printable_line() -> None:
    assert standard_error_line(RECORD, "sbusd") == (
        r"sbusd: rejected subscription to a private key: not\x0ayours [uid=1000 pid=77 connection=5 key=!/cred//0//\x0a\xff]"
    )


def test_an_unknown_value_is_not_in_the_line() -> None:
    line = standard_error_line(Record(STARTED, facts={"address": "/run/s", "version": "1"}), "sbusd")
    assert line == "sbusd: ready at /run/s, version 1"


def test_a_traceback_goes_to_the_journal_only() -> None:
    assert "line" not in standard_error_line(Record(INTERNAL_ERROR, facts={"where": "w", "reason": "r"}, trace="line\nline"), "sbusd")


def test_a_missing_fact_does_not_prevent_the_record() -> None:
    assert Record(LogMessage("0" * 32, Priority.INFO, "n", "{what} of {whom}"), facts={"what": 1}).text == "1 of (whom unknown)"


def test_a_fact_is_never_a_template() -> None:
    assert Record(SECRET_REFUSED, facts={"reason": "{uid} {0.__class__}"}).text.endswith(": {uid} {0.__class__}")


def test_a_fact_can_have_the_name_of_a_field_that_is_not_known() -> None:
    """A service without clients of its own reports the connection of another one."""
    assert journal_fields(Record(STARTED, facts={"connection": 7}), "sbus-relay")["SBUS_CONNECTION"] == b"7"


@contextmanager
def null_standard_error() -> Iterator[None]:
    """Have the null device as standard error, as systemd gives it to a service if journald does not run."""
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


class TestJournal:
    """The socket of the test takes the place of the journal's."""

    def test_a_record_arrives(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
            journald.bind(str(folder / "s"))
            with closing(JournalSink("sbusd", str(folder / "s"))) as sink:
                sink.write(RECORD)
            assert parse(journald.recv(100_000)) == journal_fields(RECORD, "sbusd")

    def test_a_restarted_journal_gets_the_next_record(self, folder: Path) -> None:
        sink = JournalSink("sbusd", str(folder / "s"))
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
                journald.bind(str(folder / "s"))
                sink.write(RECORD)
                assert journald.recv(100_000)
            (folder / "s").unlink()
        sink.close()

    def test_no_journal_is_an_error(self, folder: Path) -> None:
        with closing(JournalSink("sbusd", str(folder / "s"))) as sink, pytest.raises(FileNotFoundError):
            sink.write(RECORD)


class TestStandardError:
    """Standard error, wherever it leads."""

    def test_a_record_is_a_line(self, capfd: pytest.CaptureFixture[str]) -> None:
        StandardErrorSink("sbusd").write(RECORD)
        assert capfd.readouterr().err == standard_error_line(RECORD, "sbusd") + "\n"

    def test_a_line_in_pieces_is_whole(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, text: write(fd, text[:7]))
        StandardErrorSink("sbusd").write(RECORD)
        assert capfd.readouterr().err == standard_error_line(RECORD, "sbusd") + "\n"

    def test_the_null_device_is_an_error(self) -> None:
        with null_standard_error(), pytest.raises(OSError, match="standard error is the null device"):
            StandardErrorSink("sbusd").write(RECORD)


class TestChoice:
    """The journal or standard error."""

    @staticmethod
    def _own_stream() -> dict[str, str]:
        error = os.fstat(2)
        return {"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}

    @pytest.fixture(autouse=True)
    def _journal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "socket").touch()
        monkeypatch.setattr(log_records, "JOURNAL_SOCKET", str(tmp_path / "socket"))

    def test_under_systemd_it_is_the_journal(self) -> None:
        with closing(choose_sink("sbusd", background=False, environment=self._own_stream())) as sink:
            assert isinstance(sink, JournalSink)

    def test_in_the_background_it_is_the_journal(self) -> None:
        with closing(choose_sink("sbusd", background=True, environment={})) as sink:
            assert isinstance(sink, JournalSink)

    @pytest.mark.parametrize("environment", [{}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "1:1"}, {"JOURNAL_STREAM": "nonsense"}])
    def test_for_a_person_it_is_standard_error(self, environment: dict[str, str]) -> None:
        assert isinstance(choose_sink("sbusd", background=False, environment=environment), StandardErrorSink)

    def test_a_service_that_started_without_journald_logs_when_it_is_back(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_records, "JOURNAL_SOCKET", str(folder / "s"))
        with null_standard_error():
            sink = choose_sink("sbusd", environment={"SYSTEMD_EXEC_PID": str(os.getpid())})
            # Of a program that a service has started, and that sends its errors to the null device on purpose.
            assert isinstance(choose_sink("sbusd", environment={"SYSTEMD_EXEC_PID": str(os.getppid())}), StandardErrorSink)
        with closing(sink), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
            with pytest.raises(FileNotFoundError):
                sink.write(RECORD)
            journald.bind(str(folder / "s"))
            sink.write(RECORD)
            assert parse(journald.recv(100_000))["SYSLOG_IDENTIFIER"] == b"sbusd"

    def test_without_a_journal_it_is_standard_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_records, "JOURNAL_SOCKET", "/nowhere/socket")
        assert isinstance(choose_sink("sbusd", background=True, environment=self._own_stream()), StandardErrorSink)


class Sink:
    """A sink that keeps the records, or fails."""

    def __init__(self, error: OSError | None = None) -> None:
        self.records: list[Record] = []
        self._error = error

    def write(self, record: Record) -> None:
        self.records.append(record)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        pass


def test_a_message_is_a_record_with_its_facts() -> None:
    sink = Sink()
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="full", count=7)
    assert sink.records == [Record(SUSPENDED, facts={"reason": "full", "count": 7})]


def test_a_long_fact_is_cut() -> None:
    """A larger datagram would be lost: journald takes some 200 KiB."""
    sink = Sink()
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="r" * 300_000, count=10**30)
    assert sink.records == [Record(SUSPENDED, facts={"reason": "r" * (MAX_FACT_BYTES - 1) + "…", "count": 10**30})]


@pytest.mark.parametrize("sink", [None, StandardErrorSink("sbus-some")])
def test_a_person_reads_one_line(sink: LogSink | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="no\nroom\x1b[2J", count=3)
    assert capfd.readouterr().err == "sbus-some: suspended: no\\x0aroom\\x1b[2J; times: 3\n"


def test_a_record_that_cannot_be_written_ends_nothing() -> None:
    sink = Sink(OSError("the journal is gone"))
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="full", count=1)
    assert len(sink.records) == 1


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(clock: Clock) -> LimitedLog:
    return LimitedLog("sbus-relay", clock=clock)


def test_a_flood_is_one_record_in_a_while(journal: LimitedLog, clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(100):
        journal.record_limited(AUTHENTICATION_FAILED, "10.0.0.9", address="10.0.0.9", reason="not signed")
    clock.seconds += QUIET_SECONDS
    journal.record_limited(AUTHENTICATION_FAILED, "10.0.0.9", address="10.0.0.9", reason="not signed")
    first, second = capfd.readouterr().err.splitlines()
    assert first == "sbus-relay: rejected 1 unauthenticated requests from 10.0.0.9: not signed"
    assert second == "sbus-relay: rejected 100 unauthenticated requests from 10.0.0.9: not signed"


def test_another_cause_is_logged_at_once(journal: LimitedLog, capfd: pytest.CaptureFixture[str]) -> None:
    for address in ("10.0.0.8", "10.0.0.9"):
        journal.record_limited(AUTHENTICATION_FAILED, address, address=address, reason="x")
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_another_user_with_many_addresses_fills_no_memory(journal: LimitedLog, clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3 * MAX_CAUSES):
        journal.record_limited(AUTHENTICATION_FAILED, str(number), address=str(number), reason="x")
    assert len(capfd.readouterr().err.splitlines()) == MAX_CAUSES + 1
    assert len(journal._quiet_until) <= MAX_CAUSES + 1
    clock.seconds += QUIET_SECONDS
    journal.record_limited(AUTHENTICATION_FAILED, "new", address="new", reason="x")
    assert capfd.readouterr().err


def test_another_user_writes_no_line_of_his_own(journal: LimitedLog, capfd: pytest.CaptureFixture[str]) -> None:
    journal.record_limited(AUTHENTICATION_FAILED, "x", address="10.0.0.9", reason="evil\nsbus-relay: all is well\x1b[2J")
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
