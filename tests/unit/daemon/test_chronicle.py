"""What is written down as it goes: a state that cannot be written is not believed, and is written again later."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from sbusd.daemon import chronicle, inventory, state
from sbusd.daemon.chronicle import KeptChronicle
from sbusd.daemon.parking import ParkingLot
from sbusd.daemon.state import State
from sbusd.daemon.statefile import StateError, StateFile
from tests.support.parlour import MakeParlour, Parlour


@pytest.fixture
def kept(make_parlour: MakeParlour) -> Iterator[tuple[Parlour, KeptChronicle]]:
    parlour = make_parlour()
    lot = ParkingLot.create(lambda: [client.fd for client in parlour.broker.parts().roster])
    file = StateFile.create()
    made = KeptChronicle(file, lot, parlour.switch, lambda: inventory.standing(parlour.broker.parts()), parlour.journal)
    made.begin()
    parlour.broker.set_chronicle(made)
    yield parlour, made
    file.close()
    lot.close()


def _read(made: KeptChronicle) -> State:
    file = StateFile.adopt(made.file.fd)
    try:
        return state.replay(file.records())
    finally:
        file.close()


def test_every_change_is_there_at_once(kept: tuple[Parlour, KeptChronicle]) -> None:
    parlour, made = kept
    guest, other = parlour.guest(), parlour.guest(uid=7)
    for packet in (b"SUB a", b"SUB a", b"SUB b", b"UNSUB b", b"CMSG echo/off", b"CMSG sender/on", b"CMSG tap/on\0t"):
        guest.send(packet)
    other.close()
    parlour.run()
    (connection,) = _read(made).connections.values()
    assert (connection.patterns, connection.settings.echo, connection.settings.sender) == ({"a": 2}, False, True)
    assert connection.tap == "t"
    assert _read(made).bus.next_connection > guest.connection + 1
    assert _read(made) == state.replay(state.image(_read(made)))


def test_a_long_log_is_written_anew(kept: tuple[Parlour, KeptChronicle], monkeypatch: pytest.MonkeyPatch) -> None:
    parlour, made = kept
    monkeypatch.setattr(chronicle, "LEAST_BYTES", 1_000)
    guest = parlour.guest()
    sizes = []
    for _ in range(200):
        guest.send(b"CMSG echo/off")
        parlour.run()
        sizes.append(made.file.size)
    assert max(sizes) < 3_000
    assert not _read(made).connections[guest.connection].settings.echo


def test_a_state_that_cannot_be_written_is_not_believed_until_it_can(
    kept: tuple[Parlour, KeptChronicle], monkeypatch: pytest.MonkeyPatch
) -> None:
    parlour, made = kept
    guest = parlour.guest()

    def fail(_record: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(made.file, "append", fail)
    guest.send(b"SUB a")
    parlour.run()
    with pytest.raises(StateError):
        _read(made)
    assert made.counts()["state_failures"] == 1
    monkeypatch.undo()
    monkeypatch.setattr(made, "_rests_until", 0.0)
    guest.send(b"SUB b")
    parlour.run()
    assert _read(made).connections[guest.connection].patterns == {"a": 1, "b": 1}
    assert [record.message.name for record in parlour.recorded()].count("state-unkept") == 1
