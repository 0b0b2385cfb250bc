"""What is published, and what of standard input."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sbus import PayloadTooLarge
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbusctl.application import application
from sbusctl.commands.pub import MessageError, publish_lines, read_records
from sbusctl.payloads import InputTooLongError


class FakeBus:
    """Notes what is done, and refuses payloads that begin with an exclamation mark."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.recipients: list[int | None] = []

    def publish(self, key: bytes, payload: bytes, *, to: int | None = None) -> None:
        if payload == b"!large":
            raise PayloadTooLarge(500_000, 409_600)
        if payload == b"!nul":
            raise ProtocolError(ErrorCode.EINVAL, "invalid key 'a': a NUL byte")
        self.done.append(payload)
        self.recipients.append(to)

    @contextlib.contextmanager
    def coalesce(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.done.append(b"flush")

    def ping(self) -> float:
        self.done.append(b"ping")
        return 0.0


class _Slow(io.BytesIO):
    """Input that comes in the given parts, each by one read."""

    def __init__(self, parts: list[bytes]) -> None:
        super().__init__()
        self.parts = parts

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.parts.pop(0) if self.parts else b""


@pytest.mark.parametrize(
    ("data", "end", "records"),
    [
        (b"", b"\n", []),
        (b"a", b"\n", [b"a"]),
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"\n\nlast", b"\n", [b"", b"", b"last"]),
        (b"a\r\n", b"\n", [b"a\r"]),
        (b"a\nb\0c", b"\0", [b"a\nb", b"c"]),
    ],
)
def test_records(data: bytes, end: bytes, records: list[bytes]) -> None:
    for source in (io.BytesIO(data), _Slow([data[i : i + 1] for i in range(len(data))])):
        assert [record for group in read_records(source, end) for record in group] == records


def test_a_record_is_there_before_the_next_is_written() -> None:
    parts = [b"one\n", b"two\nthr", b"ee\n"]
    records = read_records(_Slow(parts), b"\n")
    assert next(records) == [b"one"]
    assert len(parts) == 2
    assert list(records) == [[b"two"], [b"three"]]


def test_an_endless_record_is_not_read_indefinitely() -> None:
    parts = [bytes(65_536)] * 1000
    with pytest.raises(InputTooLongError):
        list(read_records(_Slow(parts), b"\n"))
    assert len(parts) > 990


def test_all_lines_are_published_and_then_awaited() -> None:
    bus = FakeBus()
    publish_lines(bus, b"k", [[b"a", b"b"], [b"c"]])
    assert bus.done == [b"a", b"b", b"flush", b"c", b"flush", b"ping"]


def test_lines_for_one_connection() -> None:
    bus = FakeBus()
    publish_lines(bus, b"k", [[b"a", b"b"]], to=12)
    assert bus.recipients == [12, 12]


@pytest.mark.parametrize(("bad", "reason"), [(b"!large", "packet too long: 500000 bytes"), (b"!nul", "invalid key 'a': a NUL byte")])
def test_a_line_that_cannot_be_published_is_named_by_its_number(bad: bytes, reason: str) -> None:
    bus = FakeBus()
    with pytest.raises(MessageError, match=f"cannot publish message 3 of standard input: {reason}.*; published 2 messages before it"):
        publish_lines(bus, b"k", [[b"a"], [b"b", bad, b"c"]])
    assert bus.done == [b"a", b"flush", b"b", b"flush", b"ping"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub", "-l", "k", "payload"],
        ["pub", "-0", "k", "payload"],
        ["pub"],
        ["pub", "a", "b", "c"],
        ["pub", "--to", "0", "k"],
        ["pub", "--to", "x", "k"],
    ],
)
def test_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("root: pub: ")
