"""What of the bus's traffic is printed, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sbusd.client import Gap, Message, Peer, TapItem, TapRecord
from sbusd.client.tap import tap_item
from sbusd.ctl.commands.monitor import Filter, RecordPrinter, record_json, record_line
from sbusd.ctl.following import follow
from sbusd.ctl.output import JsonStyle
from sbusd.ctl.processes import Process
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.peers import make_peer

PEER = Peer(7, 61_999, 100, 999_999_999, b"!/cred/100/61999/999999999")
LINE = b'"time":1500000000,"id":7,"cred":"!/cred/100/61999/999999999"'
PROCESS = Process("evil\x1b[2J", "a.service")


def told(kind: str, rest: bytes = b"", packet: bytes = b"") -> TapRecord:
    record = tap_item(Message(b"!/tap", b'{"kind":"%b",%b%b}\n%b' % (kind.encode(), LINE, rest, packet)))
    assert isinstance(record, TapRecord)
    return record


MESSAGE = told("message", b',"recipients":2,"queued":1,"discarded":0', b"MSG a/b\0one\ntwo")
DENIAL = told("denial", b',"packet":"SUB","error":"EPERM","reason":"a rule","key":"!/x","count":3')
ODD = told("subscribe", b',"pattern":"a\\\\xff","pattern_base64":"Yf8="')


def test_records_are_read_whole() -> None:
    assert (MESSAGE.kind, MESSAGE.time, MESSAGE.peer, MESSAGE.key) == ("message", 1.5, PEER, b"a/b")
    assert MESSAGE.message == Message(b"a/b", b"one\ntwo", PEER)
    assert (ODD.key, DENIAL.key, told("loss", b',"count":4').key) == (b"a\xff", b"!/x", None)
    assert tap_item(Gap(2)) == Gap(2)


@pytest.mark.parametrize("payload", [b"", b"[]\n", b"{}\n", b'{"kind":"message","time":1}\nSUB a', b'{"kind":"x","time":"y"}\n'])
def test_what_no_bus_tells(payload: bytes) -> None:
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
def test_what_is_printed(wanted: Filter, takes: bool) -> None:
    assert wanted.takes(MESSAGE, PROCESS) is takes
    nobody = TapRecord("denial", 0.0, None, {})
    assert wanted.takes(nobody, Process()) is (wanted == Filter())


def test_following_ends_with_the_count_and_tells_what_is_missing(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
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

    monkeypatch.setattr("sbusd.ctl.commands.monitor.process_of", process_of)
    printer = RecordPrinter(JsonStyle.SHORT, Filter(unit="a.service"), {5: 1.5, 9: 2.5})
    for number, kind in ((5, "message"), (6, "message"), (10, "message"), (7, "connect")):
        printer.write(TapRecord(kind, 8.0, make_peer(number, b"!/cred/1/2/%d" % (100 + number)), {}))
    assert asked == [(105, 1.5), (106, None), (110, 8.0), (107, 8.0)]


def test_following_ends_with_the_time() -> None:
    def nothing(_timeout: float | None) -> TapItem:
        raise TimeoutError

    follow(nothing, RecordPrinter(JsonStyle.OFF, Filter()), None, 5.0, clock=lambda: 5.0)
    follow(nothing, RecordPrinter(JsonStyle.OFF, Filter()), None, 6.0, clock=lambda: 5.0)
