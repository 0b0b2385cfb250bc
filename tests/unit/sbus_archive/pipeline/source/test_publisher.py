"""Rows as messages: what is none is refused before anything is published, by its row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType

from sbus.errors import RemoteRefusal
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.sync.bus import Bus
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.options import Options
from sbus_archive.pipeline.source.publisher import MOST_TASK_BYTES, QueryPublisher, RowConverter, StreamPublisher
from tests.support.minibus import MiniBus


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


PLAIN = columns(key=StringType(), payload=BinaryType())


def rows(*some: tuple[object, object]) -> list[pa.RecordBatch]:
    """Return rows, one batch each."""
    return [pa.RecordBatch.from_arrays([pa.array([key]), pa.array([payload])], names=["key", "payload"]) for key, payload in some]


def test_rows_become_messages() -> None:
    made = RowConverter(PLAIN).messages(rows((r"a/\xff\\", b"x"), (b"\xfe", "é"), ("b", None)))
    assert [(row["key"], row["payload"]) for batch in made.batches for row in batch.to_pylist()] == [
        (b"a/\xff\\", b"x"),
        (b"\xfe", "é".encode()),
        (b"b", b""),
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((None, b""), "row 1 of the task has no key"),
        (("a\\b", b""), r"row 1 of the task: invalid key 'a\\b'"),
        ((b"a\0b", b""), "row 1 of the task: the key contains NUL"),
        (("k" * (MAX_KEY_BYTES + 1), b""), "the key has 4097 bytes, maximum 4096"),
        (("k", b"x" * MAX_PACKET_BYTES), "row 1 of the task is too large: packet of 409606 bytes, maximum 409600"),
    ],
)
def test_a_row_that_is_not_a_message_is_named(row: tuple[object, object], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        RowConverter(PLAIN).messages(rows(("a", b""), row))
    assert says.replace("\\\\", "\\") in str(caught.value).replace("\\\\", "\\")


def test_too_many_rows_for_the_driver_are_refused() -> None:
    big = rows(("k", b"x" * 400_000))
    with pytest.raises(SourceError, match=f"more than {MOST_TASK_BYTES} bytes to publish"):
        RowConverter(PLAIN).messages(big * (MOST_TASK_BYTES // 400_000 + 1))


@pytest.mark.parametrize(
    "schema",
    [
        columns(key=StringType()),
        columns(key=IntegerType(), payload=BinaryType()),
        columns(key=StringType(), payload=BinaryType(), x=StringType()),
    ],
)
def test_other_columns_are_refused(schema: StructType) -> None:
    with pytest.raises(SourceError, match="publishing needs key and payload"):
        RowConverter(schema)


def test_missing_options_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no outbox given"):
        StreamPublisher(Options(), PLAIN)
    for options in (Options(token="t"), Options(outbox=tmp_path)):
        with pytest.raises(SourceError, match="token and outbox must be given together"):
            QueryPublisher(options, PLAIN)


def test_after_a_refusal_the_batch_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bus is asked after each chunk; those before the refused one are not published again, and of it is said what is in doubt."""
    bus = MiniBus(tmp_path / "socket")
    try:
        with Bus.connect(bus.address) as reader, reader.subscribe("k/") as messages:
            broken = [True]

            def refuse(connection: object, packet: bytes) -> bool | None:
                if broken[0] and packet.startswith(b"MSG k/3\0"):
                    bus.connections[max(bus.connections)].say(b"CMSG !/bus/error\0EPERM refused by the test")
                    return True
                return None

            bus.before = refuse
            options = Options(address=bus.address, outbox=tmp_path / "outbox", chunk_rows=2)
            publisher = StreamPublisher(options, PLAIN)
            keys = pa.array([f"k/{number}" for number in range(5)])
            batch = publisher.write(iter([pa.RecordBatch.from_arrays([keys, pa.array([b""] * 5)], names=["key", "payload"])]))
            with pytest.raises(RemoteRefusal) as caught:
                publisher.commit([batch], 7)
            assert caught.value.code is ErrorCode.EPERM
            broken[0] = False
            publisher.commit([batch], 7)
            publisher.commit([None], 7)  # and again
            got = [messages.receive(20.0) for _ in range(6)]
            assert [getattr(each, "key", None) for each in got] == ["k/0", "k/1", "k/2", "k/2", "k/3", "k/4"]
    finally:
        bus.close()
    assert "published 2 messages again that the bus may already have received" in capsys.readouterr().err
