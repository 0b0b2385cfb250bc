"""What of the bus's traffic is printed, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sbus import Change, Gap, Message, Peer, PresenceEvent, PresenceItem, TapItem, TapRecord
from sbus.items import tap_item
from sbus.protocol.credentials import make_peer
from sbus.protocol.errors import ProtocolError
from sbus_programs.systemd.processes import Process
from sbusctl.commands.monitor import EventPrinter, Filter, RecordPrinter, event_json, event_line, record_json, record_line
from sbusctl.output import JsonStyle, follow

PEER = Peer(7, 61_999, 100, 999_999_999, b"!/cred/100/61999/999999999")
LINE = b'"time":1500000000,"id":7,"cred":"!/cred/100/61999/999999999"'
PROCESS = Process("evil\x1b[2J", "a.service")
COME = PresenceEvent(Change.CONNECT, PEER, 1.5)
SUBSCRIBED = PresenceEvent(Change.SUBSCRIBE, PEER, 1.5, "a\n\udcff")


def reported(kind: str, rest: bytes = b"", packet: bytes = b"") -> TapRecord:
    record = tap_item(Message(b"!/tap", b'{"kind":"%b",%b%b}\n%b' % (kind.encode(), LINE, rest, packet)))
    assert isinstance(record, TapRecord)
    return record


MESSAGE = reported("message", b',"recipients":2,"queued":1,"discarded":0', b"MSG a/b\0one\ntwo")
DENIAL = reported("denial", b',"packet":"SUB","error":"EPERM","reason":"a rule","key":"!/x","count":3')
ODD = reported("subscribe", b',"pattern":"a\\\\xff","pattern_base64":"Yf8="')


def test_records_are_read_whole() -> None:
    assert (MESSAGE.kind, MESSAGE.time, MESSAGE.peer, MESSAGE.key) == ("message", 1.5, PEER, "a/b")
    assert MESSAGE.message == Message(b"a/b", b"one\ntwo", PEER)
    assert (ODD.key, DENIAL.key, reported("loss", b',"count":4').key) == ("a\udcff", "!/x", None)
    assert tap_item(Gap(2)) == Gap(2)


@pytest.mark.parametrize("payload", [b"", b"[]\n", b"{}\n", b'{"kind":"message","time":1}\nSUB a', b'{"kind":"x","time":"y"}\n'])
def test_a_malformed_record(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        tap_item(Message(b"!/tap", payload))


def test_a_record_is_one_line_that_drives_no_terminal() -> None:
    cells = record_line(MESSAGE, PROCESS).split("\t")
    assert cells[1:] == [
        "message",
        "7/61999/999999999(evil\\x1b[2J)",
        "a/b",
        "recipients=2 queued=1 discarded=0",
        "one\\ntwo",
    ]
    direct = reported("message", b',"to":12,"recipients":1,"queued":0,"discarded":0', b"MSG a/b\0")
    assert record_line(direct, PROCESS).split("\t")[4] == "to=12 recipients=1 queued=0 discarded=0"
    assert record_json(direct, PROCESS)["to"] == 12
    assert record_line(DENIAL, PROCESS).split("\t")[3:] == ["!/x", "count=3 error=EPERM reason=a rule packet=SUB"]


def test_a_record_as_json() -> None:
    assert record_json(MESSAGE, PROCESS) == {
        "type": "message",
        "time": 1.5,
        "peer": {"id": 7, "uid": 61_999, "gid": 100, "pid": 999_999_999, "command": "evil\x1b[2J", "unit": "a.service"},
        "key": "a/b",
        "recipients": 2,
        "queued": 1,
        "discarded": 0,
        "payload": "one\ntwo",
    }
    assert record_json(ODD, PROCESS)["key_base64"] == "Yf8="


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        (Filter(), True),
        (Filter(uid=61_999, pid=999_999_999, unit="a.service"), True),
        (Filter(uid=0), False),
        (Filter(pid=1), False),
        (Filter(unit="b.service"), False),
    ],
)
def test_the_printed_lines(wanted: Filter, takes: bool) -> None:
    assert wanted.takes(MESSAGE, PROCESS) is takes
    anonymous = TapRecord("denial", 0.0, None, {})
    assert wanted.takes(anonymous, Process()) is (wanted == Filter())


def test_following_ends_at_the_count_and_reports_missing_records(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    items: Iterator[TapItem] = iter([MESSAGE, Gap(3), DENIAL, MESSAGE])
    follow(lambda _timeout: next(items), RecordPrinter(JsonStyle.SHORT, Filter()), 2, None)
    out, err = capsysbinary.readouterr()
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["message", "gap", "denial"]
    assert err == b"sbusctl: lost 3 records: this reader is too slow\n"
    assert next(items) is MESSAGE


def test_the_process_of_an_older_connection_is_that_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may have been given out again before the monitor came."""
    asked: list[tuple[int | None, float | None]] = []

    def process_of(pid: int | None, since: float | None) -> Process:
        asked.append((pid, since))
        return Process()

    monkeypatch.setattr("sbusctl.commands.monitor.process_of", process_of)
    printer = RecordPrinter(JsonStyle.SHORT, Filter(unit="a.service"), {5: 1.5, 9: 2.5})
    for number, kind in ((5, "message"), (6, "message"), (10, "message"), (7, "connect")):
        printer.write(TapRecord(kind, 8.0, make_peer(number, b"!/cred/1/2/%d" % (100 + number)), {}))
    assert asked == [(105, 1.5), (106, None), (110, 8.0), (107, 8.0)]


def test_following_ends_with_the_time() -> None:
    def nothing(_timeout: float | None) -> TapItem:
        raise TimeoutError

    follow(nothing, RecordPrinter(JsonStyle.OFF, Filter()), None, 5.0, clock=lambda: 5.0)
    follow(nothing, RecordPrinter(JsonStyle.OFF, Filter()), None, 6.0, clock=lambda: 5.0)


def test_lines_of_events() -> None:
    assert event_line(COME).split(b"\t")[1:] == [b"connect", b"7", b"61999", b"999999999(-)\n"]
    assert event_line(SUBSCRIBED).split(b"\t")[5] == b"a\\n\\xff\n"


def test_json_of_events() -> None:
    assert event_json(COME) == {"type": "connect", "time": 1.5, "id": 7, "uid": 61_999, "gid": 100, "pid": 999_999_999}
    assert event_json(SUBSCRIBED)["pattern_base64"] == "YQr/"


def test_following_presence(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    items: Iterator[PresenceItem] = iter([COME, Gap(3), SUBSCRIBED, COME])
    follow(lambda _timeout: next(items), EventPrinter(JsonStyle.SHORT), 2, None)
    out, err = capsysbinary.readouterr()
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["connect", "gap", "subscribe"]
    assert b"lost 3 events" in err
    assert next(items) is COME


def test_following_presence_ends_with_the_time() -> None:
    waits: list[float | None] = []

    def nothing(timeout: float | None) -> PresenceItem:
        waits.append(timeout)
        raise TimeoutError

    follow(nothing, EventPrinter(JsonStyle.OFF), None, 6.0, clock=lambda: 5.0)
    assert waits == [0, 1.0]
