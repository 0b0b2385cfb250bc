"""How a record looks in the journal and on standard error."""

from __future__ import annotations

import struct

from sbusd.broker.log_messages import INTERNAL_ERROR, SECRET_REFUSED, STARTED
from sbusd.systemd.log_record import LogMessage, Priority, Record, journal_datagram, journal_fields, standard_error_line

RECORD = Record(
    SECRET_REFUSED, uid=1000, pid=77, connection=5, key=b"!/cred//0//\n\xff", facts={"reason": "not\nyours", "count": 2}, trace="line\nline"
)


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
        "MESSAGE": rb"rejected subscription to a secret key: not\x0ayours",
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
        r"sbusd: rejected subscription to a secret key: not\x0ayours [uid=1000 pid=77 connection=5 key=!/cred//0//\x0a\xff]"
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
