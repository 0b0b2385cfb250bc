"""For any life of any clients: what a listener has received, played over the lists it was given at its start, gives those at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from sbus.protocol import controls
from sbus_programs.config.rules import RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings
from tests.support.examples import examples
from tests.support.in_process_bus import BusClient, InProcessBus

OWNER, ALICE, BOB, SEEING = 0, 1_000, 1_001, 1_002
USERS = st.sampled_from([OWNER, ALICE, BOB, SEEING])
GROUPS = [b"a", b"a/b", b"odd\xff", b"!/cred//1000//x"]
"""Keys, and the patterns that take them: without wildcards, so a member of a key is who has it as a pattern."""
SECRET = GROUPS[-1]
SETTINGS = DaemonSettings(rights=RightsSettings(presence=Subjects(users=(SEEING,))))


def uid_of(cred: object) -> int:
    """Return the user that credentials name."""
    assert isinstance(cred, str)
    return int(cred.split("/")[3])


@dataclass
class ListenerState:
    """The state that a listener derives from events: connections, and the members of each group."""

    uid: int
    present: set[int] = field(default_factory=set)
    members: dict[bytes, set[int]] = field(default_factory=dict)

    def may_know(self, key: bytes, uid: int) -> bool:
        """Return whether this listener receives events about subscriptions of the user *uid* to *key*."""
        if self.uid in {uid, OWNER}:
            return True
        return self.uid == SEEING and not key.startswith(b"!/cred/")

    def asks(self, key: bytes) -> bool:
        """Return whether this listener may ask for the members of *key*."""
        return key != SECRET or self.uid in {OWNER, ALICE}

    def hear(self, key: bytes, payload: bytes) -> None:
        """Take note of an event."""
        kind, _, rest = key.removeprefix(b"!/event/").partition(b"/")
        number, _, pattern = rest.partition(b"/")
        connection, facts = int(number), json.loads(payload)
        assert facts["id"] == connection
        if kind == b"connect":
            assert connection not in self.present
            self.present.add(connection)
        elif kind == b"disconnect":
            self.present.discard(connection)
            for group in self.members.values():
                group.discard(connection)
        elif pattern in self.members:
            assert self.may_know(pattern, uid_of(facts["cred"]))
            group = self.members[pattern]
            assert (connection in group) is (kind == b"unsubscribe")
            group ^= {connection}


class PresenceMachine(RuleBasedStateMachine):
    """Clients connect, subscribe and disconnect; some of them listen to events."""

    clients: Bundle[BusClient] = Bundle("guests")

    @initialize()
    def open(self) -> None:
        self.bus = InProcessBus(SETTINGS)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("sbusd.broker.fast_path.credentials_of", self.bus.credentials_of)
        self.users: dict[int, int] = {}
        self.books: dict[int, ListenerState] = {}
        self.listeners: dict[int, BusClient] = {}

    @rule(target=clients, uid=USERS)
    def connect(self, uid: int) -> BusClient:
        client = self.bus.client(uid=uid)
        self.users[client.connection] = uid
        return client

    @rule(client=clients, pattern=st.sampled_from(GROUPS), verb=st.sampled_from([b"SUB ", b"SUB ", b"UNSUB "]))
    def subscribe(self, client: BusClient, pattern: bytes, verb: bytes) -> None:
        if pattern != SECRET or self.users[client.connection] == ALICE:
            client.send(verb + pattern)

    @rule(client=consumes(clients), is_rude=st.booleans())
    def leave(self, client: BusClient, is_rude: bool) -> None:
        self.listeners.pop(client.connection, None)
        self.books.pop(client.connection, None)
        if is_rude:
            client.send(b"no packet of the protocol")
        else:
            client.close()

    @rule()
    def take_a_turn(self) -> None:
        self.bus.switch.turn(0)

    @rule(client=clients)
    def listen(self, client: BusClient) -> None:
        if client.connection in self.books:
            return
        client.receive_all()
        client.subscribe(b"!/event/")
        state = ListenerState(self.users[client.connection])
        state.present, state.members = self.lists(client, state)
        self.books[client.connection], self.listeners[client.connection] = state, client

    @rule(client=clients)
    def compare(self, client: BusClient) -> None:
        if client.connection in self.books:
            self.check(client)

    def check(self, client: BusClient) -> None:
        """Fail unless the derived state of a listener equals the lists of the bus."""
        state = self.books[client.connection]
        present, members = self.lists(client, state)
        listed = {number for number, uid in self.users.items() if uid == state.uid or state.uid in {OWNER, SEEING}}
        assert (present & listed, members) == (state.present & listed, state.members)

    def lists(self, client: BusClient, state: ListenerState) -> tuple[set[int], dict[bytes, set[int]]]:
        """Request all lists at once, so that events may arrive between the responses, and apply to each the events after it."""
        asked = [key for key in GROUPS if state.asks(key)]
        for key in asked:
            client.control(controls.MEMBERS, key)
        client.control(controls.CONNECTIONS)
        present: set[int] = set()
        members: dict[bytes, set[int]] = {}
        fresh = ListenerState(state.uid)
        for packet in client.receive_all():
            head, _, payload = packet.partition(b"\0")
            if head.startswith(b"MSG !/event/"):
                if state.members:
                    state.hear(head[4:], payload)
                fresh.hear(head[4:], payload)
            elif head == b"CMSG !/bus/members":
                key = asked[len(members)]
                found = json.loads(payload)["members"]
                members[key] = fresh.members[key] = {each["id"] for each in found if state.may_know(key, uid_of(each["cred"]))}
            elif head == b"CMSG !/bus/connections":
                present = fresh.present = {each["id"] for each in json.loads(payload)["connections"]}
        assert len(members) == len(asked)
        return present, members

    def teardown(self) -> None:
        if not hasattr(self, "bus"):
            return
        try:
            for client in self.listeners.values():
                self.check(client)
        finally:
            self.bus.close()
            self.patch.undo()


PresenceMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestPresence = PresenceMachine.TestCase
