"""For any changes, any steps of the state log between them, and a kill at any write, the next process restores the exact state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbusd.restart import state_log
from sbusd.restart.connection_store import ConnectionStore
from sbusd.restart.state_log import StateLog
from sbusd.state import log_file as statefile
from sbusd.state import records as state
from sbusd.state.log_file import StateFile
from tests.support.examples import examples
from tests.support.in_process_bus import BusClient, InProcessBus

PATTERNS = [b"", b"a", b"a/", b"a/b", b"b\xff", b"c" * 30, b"d", b"e"]
GUESTS = 4

KeptConnections = dict[int, tuple[dict[bytes, int], bool, bytes | None]]
"""Of each connection its patterns with their instances, whether it has its echo, and its tap."""

ACTIONS = st.one_of(
    st.tuples(st.just("arrive")),
    st.tuples(st.just("leave"), st.integers(0, GUESTS - 1)),
    st.tuples(st.sampled_from([b"SUB", b"SUB", b"SUB", b"UNSUB"]), st.integers(0, GUESTS - 1), st.sampled_from(PATTERNS)),
    st.tuples(st.just("echo"), st.integers(0, GUESTS - 1), st.booleans()),
    st.tuples(st.just("tap"), st.integers(0, GUESTS - 1), st.sampled_from([None, *PATTERNS])),
    st.tuples(st.just("rewrite")),
    st.tuples(st.just("steps"), st.integers(1, 4)),
)


class Killed(BaseException):
    """The process has ended."""


@dataclass
class Client:
    """A client and its settings."""

    client: BusClient | None = None
    patterns: Counter[bytes] = field(default_factory=Counter)
    echo: bool = True
    tap: bytes | None = None

    def send(self, packet: bytes) -> None:
        assert self.client is not None
        self.client.send(packet)

    def close(self) -> None:
        assert self.client is not None
        self.client.close()


class Machine:
    """A bus with a state log, and a model of its state."""

    def __init__(self) -> None:
        self.bus = InProcessBus()
        self.store = ConnectionStore.create(lambda: [client.fd for client in self.bus.broker.roster])
        self.file = StateFile.create()
        self.kept = StateLog(self.file, self.store, self.bus.broker)
        self.kept.begin()
        self.bus.broker.set_change_log(self.kept)
        self.clients: dict[int, Client] = {}

    def close(self) -> None:
        self.bus.close()
        self.store.close()
        self.file.close()

    def model(self) -> KeptConnections:
        """Return the state of the model."""
        return {number: (dict(+each.patterns), each.echo, each.tap) for number, each in self.clients.items()}

    def do(self, action: tuple[object, ...]) -> None:
        """Change the model, and then the bus."""
        name, *rest = action
        if name == "arrive":
            if len(self.clients) < GUESTS:
                client = self.clients[self.bus._next] = Client()
                client.client = self.bus.client()
            return
        if name == "rewrite":
            self.kept._is_due = True
            return
        if name == "steps":
            assert isinstance(rest[0], int)
            for _ in range(rest[0]):
                if self.kept.has_work:
                    self.kept.step()
            return
        if not self.clients:
            return
        assert isinstance(rest[0], int)
        number = list(self.clients)[rest[0] % len(self.clients)]
        if name == "leave":
            self.clients.pop(number).close()
        else:
            self.send(self.clients[number], name, rest[1])
        self.bus.run()

    def send(self, client: Client, name: object, what: object) -> None:
        """Send a request of a client."""
        if name == "echo":
            client.echo = bool(what)
            client.send(b"CMSG echo/on" if what else b"CMSG echo/off")
        elif name == "tap":
            assert what is None or isinstance(what, bytes)
            client.tap = what
            client.send(b"CMSG tap/off" if what is None else b"CMSG tap/on\0" + what)
        else:
            assert isinstance(name, bytes)
            assert isinstance(what, bytes)
            client.patterns[what] += 1 if name == b"SUB" else -1 if client.patterns[what] else 0
            client.send(name + b" " + what)

    def read(self) -> KeptConnections:
        """Return the state that the next process would restore."""
        file = StateFile.adopt(self.file.fd)
        try:
            left = state.replay(file.records())
        finally:
            file.close()
        assert left.bus.next_connection > max((number for number, each in self.clients.items() if each.client), default=0)
        return {number: (each.patterns, each.settings.echo, each.tap) for number, each in left.connections.items()}


@contextmanager
def kill_after(writes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the process at the write after *writes* writes of the file."""
    left = writes
    write = statefile._write

    def count(fd: int, data: bytes, place: int) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        write(fd, data, place)

    with monkeypatch.context() as patch:
        patch.setattr(statefile, "_write", count)
        yield


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, max_size=60), writes=st.integers(0, 200))
def test_the_restored_state_is_exact(actions: list[tuple[object, ...]], writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "STEP_PATTERNS", 2)
    monkeypatch.setattr(statefile, "FREED_AT_ONCE", statefile.PAGE)
    machine = Machine()
    monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", machine.bus.credentials_of)
    try:
        before = machine.model()
        try:
            with kill_after(writes, monkeypatch):
                for action in actions:
                    before = machine.model()
                    machine.do(action)
                    assert machine.read() == machine.model()
        except Killed:
            # A tap in place of another is two changes.
            untapped = {number: (*each[:2], None) for number, each in before.items()}
            found = machine.read()
            assert found in (before, machine.model()) or (
                action[0] == "tap" and found == before | {number: untapped[number] for number in found if found[number][2] is None}
            )
    finally:
        machine.close()


@pytest.mark.parametrize("moves", range(40))
def test_a_snapshot_is_exact_whatever_changes_at_each_of_its_steps(moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a snapshot that is sure to be under way: at step *moves* something changes before, at and behind its place."""
    monkeypatch.setattr(state_log, "STEP_PATTERNS", 2)
    machine = Machine()
    monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", machine.bus.credentials_of)
    try:
        for number in range(GUESTS):
            machine.do(("arrive",))
            for pattern in PATTERNS[:-1]:
                machine.do((b"SUB", number, pattern))
        rewrites = machine.kept.counts()["state_rewrites"]
        machine.do(("rewrite",))
        machine.do(("steps", moves))
        for number in range(GUESTS):
            for action in ((b"SUB", number, b"e"), (b"UNSUB", number, b"a"), (b"SUB", number, b"d"), ("tap", number, b"t")):
                machine.do(action)
                assert machine.read() == machine.model()
        machine.do(("leave", moves % GUESTS))
        machine.do(("arrive",))
        assert machine.read() == machine.model()
        while machine.kept.has_work:
            machine.kept.step()
            assert machine.read() == machine.model()
        assert machine.kept.counts()["state_rewrites"] == rewrites + 1
    finally:
        machine.close()


def test_the_work_of_a_step_is_bounded_in_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In units that are the same on every machine. A pattern more than STEP_BYTES may be written, and a client's head."""
    machine = Machine()
    monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", machine.bus.credentials_of)
    written: list[tuple[int, int]] = []
    write_draft = machine.file.add_to_draft

    def note(records: list[bytes]) -> int:
        size = write_draft(records)
        written.append((len(records), size))
        return size

    monkeypatch.setattr(machine.file, "add_to_draft", note)
    try:
        for number in range(3):
            machine.do(("arrive",))
            for each in range(60):
                machine.do((b"SUB", number, b"%d" % each + b"x" * (4_000 if each % 2 else 10)))
        machine.do(("rewrite",))
        freed = []
        while machine.kept.has_work:
            calls, obsolete = len(written), machine.file._obsolete.length if machine.file._obsolete else 0
            machine.kept.step()
            assert len(written) - calls <= 1
            freed.append(obsolete - (machine.file._obsolete.length if machine.file._obsolete else 0))
        longest = 4_100
        assert max(records for records, _ in written) <= state_log.STEP_PATTERNS + 2
        assert max(size for _, size in written) <= state_log.STEP_BYTES + longest + 1_024
        assert max(freed) <= statefile.FREED_AT_ONCE
        assert sum(size for _, size in written) == machine.file.size
        assert len(written) * (state_log.STEP_BYTES + longest + 1_024) >= machine.file.size
    finally:
        machine.close()


def test_a_change_that_is_missing_from_the_draft_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: a snapshot that does not know its position loses changes before it."""
    monkeypatch.setattr(state_log.Snapshot, "covers", lambda *_: False)
    machine = Machine()
    monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", machine.bus.credentials_of)
    try:
        machine.do(("arrive",))
        machine.do((b"SUB", 0, b"a"))
        machine.do(("rewrite",))
        machine.do(("steps", 2))
        machine.do((b"UNSUB", 0, b"a"))
        machine.do(("steps", 9))
        assert machine.read() != machine.model()
    finally:
        machine.close()
