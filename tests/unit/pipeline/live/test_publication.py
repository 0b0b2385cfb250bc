"""Alerts are published in order; a refused one is dropped, and any other error keeps those that follow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbusd.client.errors import RemoteRefusal
from sbusd.pipeline.errors import PermanentError
from sbusd.pipeline.live.live_state import Decided
from sbusd.pipeline.live.publication import Published, publish_decided
from sbusd.pipeline.source.outbox import Outbox, Publish
from sbusd.protocol.errors import ErrorCode


class Bus:
    """A bus that refuses the keys in ``refused``."""

    def __init__(self, refused: dict[str, ErrorCode]) -> None:
        self.refused = refused
        self.received: list[str] = []
        self.connections = 0

    @contextlib.contextmanager
    def connect(self) -> Iterator[Publish]:
        """Give a connection, which a refusal closes."""
        self.connections += 1
        closed = False

        def publish(messages: list[tuple[bytes, bytes]]) -> None:
            nonlocal closed
            assert not closed
            for key, _ in messages:
                if (code := self.refused.get(key.decode())) is not None:
                    closed = True
                    raise RemoteRefusal(code, "words")
                self.received.append(key.decode())

        yield publish


def decided(*keys: str, first: int = 1) -> list[Decided]:
    """Return alerts with these keys."""
    return [Decided(number, key, "{}") for number, key in enumerate(keys, first)]


def test_refused_alerts_are_dropped_and_leave_no_file(tmp_path: Path) -> None:
    bus = Bus(dict.fromkeys(("b", "c"), ErrorCode.EPERM))
    result = publish_decided(Outbox(tmp_path, 1, "repeat"), "s", decided("a", "b", "c", "d"), bus.connect)
    assert result == Published(4, [], ["the bus refused a packet: EPERM words"] * 2)
    assert (bus.received, bus.connections) == (["a", "d"], 3)
    assert {path.name for path in tmp_path.iterdir()} == {"done.json", ".lock"}
    assert json.loads((tmp_path / "done.json").read_bytes()) == {"s": 4}


def test_a_refusal_that_passes_is_tried_again(tmp_path: Path) -> None:
    bus, outbox = Bus({"b": ErrorCode.EDQUOT}), Outbox(tmp_path, 1, "repeat")
    result = publish_decided(outbox, "s", decided("a", "b", "c"), bus.connect)
    assert (result.last, result.refused, result.problem) == (1, [], "the bus refused a packet: EDQUOT words")
    bus.refused.clear()
    assert publish_decided(outbox, "s", decided("b", "c", first=2), bus.connect) == Published(3, ["b"])
    assert bus.received == ["a", "b", "c"]


def test_a_new_series_begins_with_number_one(tmp_path: Path) -> None:
    """A state that was removed begins with number 1 again, while the outbox remains."""
    bus, outbox = Bus({}), Outbox(tmp_path, 1, "repeat")
    publish_decided(outbox, "first", decided("a", "b"), bus.connect)
    publish_decided(outbox, "second", decided("c"), bus.connect)
    assert bus.received == ["a", "b", "c"]


def test_a_damaged_outbox_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text("[]")
    with pytest.raises(PermanentError, match=r"done\.json: damaged file: not a JSON object"):
        publish_decided(Outbox(tmp_path, 1, "repeat"), "s", decided("a"), Bus({}).connect)
