"""The live bus as rows: what it tells, what was missed, and who may not listen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sbus.errors import NoBus
from sbus.items import Gap, Message, Reconnected, TapRecord
from sbus.protocol.credentials import make_peer
from sbus.protocol.errors import ErrorCode
from sbus.protocol.packets import error_packet
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.live_stream import BackgroundTap, LivePartition, LiveStreamReader, row_of
from sbus_archive.pipeline.source.options import Options
from sbus_archive.record.schema import RowKind
from tests.support.minibus import BusConnection, MiniBus
from tests.support.records import NOON, message

SCHEMA = StructType([StructField("kind", StringType()), StructField("seq", LongType()), StructField("lost", LongType())])
PEER = make_peer(7, b"!/cred/100/1000/4321")


def test_a_message_is_a_row_of_the_record() -> None:
    fields = {"kind": "message", "time": NOON, "recipients": 2, "queued": 1, "discarded": 2**40}
    row = row_of(TapRecord("message", NOON / 1e9, PEER, fields, Message(b"a/\xff", b"xy", PEER)), 5)
    expected = message(5, r"a/\xff", b"xy", ts=NOON)._replace(gid=100, unit=None, discarded=None)
    assert row == expected
    direct = row_of(TapRecord("message", NOON / 1e9, PEER, {**fields, "to": 12}, Message(b"a/\xff", b"xy", PEER)), 5)
    assert direct == expected._replace(to_conn=12)


def test_a_row_that_is_not_a_message() -> None:
    denial = TapRecord("denial", 0.0, PEER, {"time": 9, "error": "EPERM", "reason": "no\udc80", "packet": "SUB", "key": "!/x"})
    row = row_of(denial, 1)
    assert (row.kind, row.key, row.code, row.reason, row.packet, row.lost, row.ts) == ("denial", "!/x", "EPERM", r"no\udc80", "SUB", 1, 9)
    assert row_of(TapRecord("loss", 0.0, PEER, {"time": 9, "count": 3}), 1).lost == 3
    assert (*row_of(Gap(4), 2)[1:3], row_of(Gap(4), 2).lost) == (2, RowKind.TAP_LOSS.value, 4)
    assert row_of(Gap(0), 2).lost is None
    assert row_of(Reconnected(2, 1.5), 3).duration == 1_500_000_000


def test_a_denied_listener_gets_an_error_with_advice(tmp_path: Path) -> None:
    bus = MiniBus(tmp_path / "socket")

    def refuse(connection: BusConnection, packet: bytes) -> bool:
        is_demand = packet.startswith(b"CMSG tap/on")
        if is_demand:
            connection.say(error_packet(ErrorCode.EPERM, "only owners"))
        return is_demand

    bus.before = refuse
    try:
        listener = BackgroundTap(bus.address, b"")
        with pytest.raises(
            SourceError, match=r"cannot tap the bus: EPERM only owners. Allow this user with tap under .rights. in sbusd.toml"
        ):
            listener.start()
        listener.stop()
    finally:
        bus.close()
    with pytest.raises(NoBus):
        BackgroundTap(str(tmp_path / "absent"), b"").start()


def test_rows_stay_until_they_are_dropped(tmp_path: Path) -> None:
    listener = BackgroundTap(None, b"")
    listener._rows.extend(message(number) for number in range(10))
    listener.drop(4)
    assert [row.seq for row in listener.rows(4, 6)] == [4, 5]
    assert listener.end == 10
    with pytest.raises(SourceError, match="rows 3 to 5 are gone: the live bus cannot be read again"):
        listener.rows(3, 5)


def test_a_resumed_query_reports_missing_messages() -> None:
    """A batch that was begun by an earlier run has one row that counts it; the next one begins with a restart."""
    reader = LiveStreamReader(Options(), SCHEMA)
    held = [message(number) for number in range(5)]
    reader._listener = SimpleNamespace(end=5, rows=lambda first, last: held[first:last], drop=lambda end: None)  # type: ignore[assignment]
    before, begun = {"listener": "x", "rows": 10}, {"listener": "x", "rows": 17}
    assert _rows(reader, before, begun) == [("gap", 0, 7)]
    end = reader.latestOffset(begun, ReadMaxRows(3))
    assert _rows(reader, begun, end) == [("restart", 0, None), *(("message", number, None) for number in range(3))]
    assert _rows(reader, end, reader.latestOffset(end, ReadMaxRows(3))) == [("message", 3, None), ("message", 4, None)]
    last = reader.latestOffset(end, ReadMaxRows(3))
    assert reader.latestOffset(last, ReadMaxRows(3)) == last
    assert reader.__getstate__()["_listener"] is None  # no connection travels
    with pytest.raises(SourceError, match="the live bus has no end"):
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match="Use a separate checkpoint"):
        reader.latestOffset({"seen": {}}, ReadMaxRows(3))


def _rows(reader: LiveStreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[object, ...]]:
    """Return the rows of a batch."""
    partitions = reader.partitions(start, end)
    assert all(isinstance(each, LivePartition) for each in partitions)
    return [tuple(row.values()) for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
