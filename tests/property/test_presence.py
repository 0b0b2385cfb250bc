"""For any life of any clients: what a listener has heard, played over the lists it was given at its start, gives those at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from sbusd.config.rules import RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings
from sbusd.protocol import controls
from tests.support.parlour import Guest, Parlour

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
class Book:
    """What a listener believes: who is there, and who is a member of what."""

    uid: int
    present: set[int] = field(default_factory=set)
    members: dict[bytes, set[int]] = field(default_factory=dict)

    def may_know(self, key: bytes, uid: int) -> bool:
        """Return whether this listener is told of the subscriptions of the user *uid* to *key*."""
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


class Lives(RuleBasedStateMachine):
    """Clients come, subscribe and go; some of them listen."""

    guests: Bundle[Guest] = Bundle("guests")

    @initialize()
    def open(self) -> None:
        self.parlour = Parlour(SETTINGS)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("sbusd.broker.fast_path.credentials_of", self.parlour.credentials_of)
        self.users: dict[int, int] = {}
        self.books: dict[int, Book] = {}
        self.listeners: dict[int, Guest] = {}

    @rule(target=guests, uid=USERS)
    def connect(self, uid: int) -> Guest:
        guest = self.parlour.guest(uid=uid)
        self.users[guest.connection] = uid
        return guest

    @rule(guest=guests, pattern=st.sampled_from(GROUPS), verb=st.sampled_from([b"SUB ", b"SUB ", b"UNSUB "]))
    def subscribe(self, guest: Guest, pattern: bytes, verb: bytes) -> None:
        if pattern != SECRET or self.users[guest.connection] == ALICE:
            guest.send(verb + pattern)

    @rule(guest=consumes(guests), is_rude=st.booleans())
    def leave(self, guest: Guest, is_rude: bool) -> None:
        self.listeners.pop(guest.connection, None)
        self.books.pop(guest.connection, None)
        if is_rude:
            guest.send(b"no packet of the protocol")
        else:
            guest.close()

    @rule()
    def take_a_turn(self) -> None:
        self.parlour.switch.turn(0)

    @rule(guest=guests)
    def listen(self, guest: Guest) -> None:
        if guest.connection in self.books:
            return
        guest.receive_all()
        guest.subscribe(b"!/event/")
        book = Book(self.users[guest.connection])
        book.present, book.members = self.lists(guest, book)
        self.books[guest.connection], self.listeners[guest.connection] = book, guest

    @rule(guest=guests)
    def compare(self, guest: Guest) -> None:
        if guest.connection in self.books:
            self.check(guest)

    def check(self, guest: Guest) -> None:
        """Fail unless what a listener believes is what it is told."""
        book = self.books[guest.connection]
        present, members = self.lists(guest, book)
        listed = {number for number, uid in self.users.items() if uid == book.uid or book.uid in {OWNER, SEEING}}
        assert (present & listed, members) == (book.present & listed, book.members)

    def lists(self, guest: Guest, book: Book) -> tuple[set[int], dict[bytes, set[int]]]:
        """Ask for all lists at once, so that events may come between the answers, and play back to each what comes behind it."""
        asked = [key for key in GROUPS if book.asks(key)]
        for key in asked:
            guest.control(controls.MEMBERS, key)
        guest.control(controls.CONNECTIONS)
        present: set[int] = set()
        members: dict[bytes, set[int]] = {}
        fresh = Book(book.uid)
        for packet in guest.receive_all():
            head, _, payload = packet.partition(b"\0")
            if head.startswith(b"MSG !/event/"):
                if book.members:
                    book.hear(head[4:], payload)
                fresh.hear(head[4:], payload)
            elif head == b"CMSG !/bus/members":
                key = asked[len(members)]
                found = json.loads(payload)["members"]
                members[key] = fresh.members[key] = {each["id"] for each in found if book.may_know(key, uid_of(each["cred"]))}
            elif head == b"CMSG !/bus/connections":
                present = fresh.present = {each["id"] for each in json.loads(payload)["connections"]}
        assert len(members) == len(asked)
        return present, members

    def teardown(self) -> None:
        if not hasattr(self, "parlour"):
            return
        try:
            for guest in self.listeners.values():
                self.check(guest)
        finally:
            self.parlour.close()
            self.patch.undo()


Lives.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TestLives = Lives.TestCase
