"""The call recorder/close on a real bus: its permitted callers, and what is in the archive when it is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import Bus, NoRecipient, RemoteError, RemoteRefusal
from sbus_archive.record.schema import RowKind
from sbus_archive.recorder.segment_closing import COMMAND
from tests.integration.test_recorder import Service
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.users import User
from tools.stage import ROOT, Stage

SECONDS = 60.0
RULES = ROOT / "etc" / "sbusd.toml.d" / "50-recorder.toml"


class Recorded:
    """A bus, and a recorder that the first user runs."""

    def __init__(self, bus: Daemon, service: Service) -> None:
        self.bus = bus
        self.service = service

    def close(self) -> dict[str, object]:
        """Call recorder/close; return the answer."""
        with Bus.connect(self.bus.path) as bus:
            answer: dict[str, object] = json.loads(bus.call(COMMAND, timeout=SECONDS))
            return answer

    def is_served(self) -> bool:
        """Return whether the recorder serves its call."""
        with Bus.connect(self.bus.path) as bus:
            return bool(bus.members(f"rpc/{COMMAND}"))


@pytest.fixture(params=["with the rules of the package", "with the right to tap only"])
def recorded(request: pytest.FixtureRequest, daemon: StartDaemon, folder: Path, stage: Stage, first_user: User) -> Iterator[Recorded]:
    config = folder / "bus.toml"
    rules = f"[rights]\ntap = {{ users = [{first_user.uid}] }}\n"
    if "rules" in request.param:
        rules = RULES.read_text().replace('"sbus-recorder"', str(first_user.uid))
    config.write_text(rules)
    bus = daemon("-C", str(config))
    service = Service(folder, stage, first_user, bus.path)
    made = Recorded(bus, service)
    try:
        service.wait_ready()
        wait_for(lambda: made.is_served() or None, "the service of the recorder", SECONDS)
        yield made
    finally:
        service.close()


def test_everything_before_the_call_is_in_the_archive(recorded: Recorded) -> None:
    """Also what the recorder has not yet read; twice, because each call closes another segment."""
    publisher = recorded.bus.client()
    for part in range(2):
        for number in range(3_000):
            publisher.publish(b"k", b"%d" % (3_000 * part + number))
            if number % 100 == 0:
                publisher.barrier()
        publisher.barrier()
        answer = recorded.close()
        assert answer["archive"] == str(recorded.service.folder / "archive")
        rows = recorded.service.rows()
        assert [row.payload for row in rows if row.key == "k"] == [b"%d" % number for number in range(3_000 * (part + 1))]
        assert isinstance(answer["rows"], int)
        assert 3_000 <= answer["rows"] <= len(rows)
    assert not [row for row in recorded.service.rows() if row.kind in (RowKind.GAP, RowKind.TAP_LOSS)]
    assert "stopped recording" in recorded.service.end()


def test_only_root_and_the_user_of_the_recorder_may_call(recorded: Recorded, first_user: User, second_user: User) -> None:
    def call() -> str:
        with Bus.connect(recorded.bus.path) as bus:
            try:
                return bus.call(COMMAND, timeout=SECONDS).decode()
            except (RemoteError, RemoteRefusal) as error:
                return str(error)

    assert "archive" in json.loads(first_user.call(call, SECONDS))
    said = second_user.call(call, SECONDS)
    assert "only root may call them" in said or "may not call recorder/close" in said


def test_another_user_cannot_pose_as_the_recorder(recorded: Recorded, second_user: User) -> None:
    """With the rules of the package. Without them the caller gets the answer of either, as of every command."""

    def serve() -> str:
        with Bus.connect(recorded.bus.path) as bus:
            bus.service(COMMAND)(lambda _request: b"{}")
            try:
                bus.serve(ready=bus.stop_serving)
            except RemoteRefusal as refusal:
                return refusal.said
        return "served"

    expected = "EPERM" if "publish" in (recorded.service.folder.parent / "bus.toml").read_text() else "served"
    assert second_user.call(serve, SECONDS).startswith(expected)


def test_after_the_recorder_there_is_no_service(recorded: Recorded) -> None:
    recorded.service.end()
    with pytest.raises(NoRecipient):
        recorded.close()
