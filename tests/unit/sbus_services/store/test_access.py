"""The store asks the bus, caches the answers, and lets no user cause too many questions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from sbus.errors import Closed, RemoteRefusal, SbusError, Unanswered
from sbus.protocol.credentials import UNKNOWN_ID, Peer
from sbus.protocol.errors import ErrorCode
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.store.access import ASKS_AT_ONCE, CACHE_SECONDS, Access, VouchRight
from sbus_services.store.calls.responses import CallError

ALICE = Peer(7, 1000, 1000, 55, b"!/cred/1000/1000/55")
OPERATOR = Peer(9, 990, 990, 57, b"!/cred/990/990/57")
"""Another owner of the bus than root."""
MALLORY = Peer(8, 1001, 1001, 56, b"!/cred/1001/1001/56")


CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, 1001)]))
"""The ids from 100000 on are those of Mallory."""


class Bus:
    """Answers questions, and counts them."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.now = 0.0
        self.prefix: str | None = ""
        self.refuses = False
        self.reports: list[str] = []
        self.access = Access(self.ask, self.reports.append, CHARGED, lambda: self.now)

    async def ask(self, _key: bytes, payload: bytes) -> bytes:
        self.asked.append(payload)
        if self.refuses:
            raise RemoteRefusal(ErrorCode.EPERM, "no", "CMSG", None)
        answer: dict[str, object] = {"allowed": b"secret" not in payload, "reason": "a rule", "owner": payload.startswith(b"990\0")}
        return json.dumps(answer | ({"prefix": self.prefix} if self.prefix is not None and b"publish" in payload else {})).encode()


def test_one_answer_is_for_all_keys_with_its_prefix_for_some_seconds() -> None:
    bus = Bus()
    assert asyncio.run(bus.access.may_publish(ALICE, [b"a", b"b", b"c/d"])) == ["", "", ""]
    assert len(bus.asked) == 1
    bus.now += CACHE_SECONDS
    asyncio.run(bus.access.may_publish(ALICE, [b"a"]))
    asyncio.run(bus.access.may_publish(MALLORY, [b"a"]))
    assert bus.asked[1:] == [b"1000\0publish\0a", b"1001\0publish\0a"]


def test_without_a_prefix_each_key_is_asked_for_once() -> None:
    bus = Bus()
    bus.prefix = None
    for _ in range(2):
        assert asyncio.run(bus.access.may_publish(ALICE, [b"a", b"secret", b"a"]))[1].startswith("user 1000 may not publish secret: a rule")
    assert len(bus.asked) == 2
    with pytest.raises(CallError, match="EACCES user 1000 may not subscribe"):
        asyncio.run(bus.access.check_subscribe(ALICE, [b"x", b"secret"]))


def test_a_user_cannot_use_up_the_questions_of_others() -> None:
    bus = Bus()

    async def flood() -> None:
        for number in range(int(ASKS_AT_ONCE) + 1):
            identity = MALLORY if number % 2 else replace(MALLORY, uid=100_000 + number)
            await bus.access.check_subscribe(identity, [b"%d" % number])

    asyncio.run(bus.access.check_subscribe(ALICE, [b"x"]))
    with pytest.raises(CallError, match=r"EDQUOT .* for user 1001"):
        asyncio.run(flood())
    asked = len(bus.asked)
    asyncio.run(bus.access.check_subscribe(ALICE, [b"x"]))
    assert len(bus.asked) == asked  # many ids of one user displace no decision about others
    bus.now += 1
    asyncio.run(bus.access.check_subscribe(MALLORY, [b"x"]))


def test_an_id_of_a_container_does_not_have_the_rights_of_its_user() -> None:
    bus = Bus()
    for uid in (1001, 100_000, 100_001):
        asyncio.run(bus.access.may_publish(replace(MALLORY, uid=uid), [b"a"]))
    assert bus.asked == [b"1001\0publish\0a", b"100000\0publish\0a", b"100001\0publish\0a"]


def test_a_bus_that_refuses_admits_no_caller() -> None:
    bus = Bus()
    bus.refuses = True
    with pytest.raises(CallError, match="EACCES the store may not ask"):
        asyncio.run(bus.access.check_subscribe(ALICE, [b"x"]))
    assert len(bus.reports) == 1
    with pytest.raises(CallError, match="not a user of this host"):
        asyncio.run(bus.access.check_subscribe(Peer(7, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, b""), [b"x"]))


def test_a_user_that_may_subscribe_to_everything_is_not_an_owner() -> None:
    bus = Bus()
    assert asyncio.run(bus.access.may_subscribe(ALICE, [b""]))
    owners = [each.uid for each in (ALICE, OPERATOR, replace(ALICE, uid=0)) if asyncio.run(bus.access.is_owner(each))]
    assert owners == [OPERATOR.uid, 0]
    with pytest.raises(CallError, match="EACCES user 1000 may not purge: only root and the owners"):
        asyncio.run(bus.access.check_owner(ALICE, "purge"))


class VouchRightBus:
    """Answers with an error."""

    def __init__(self) -> None:
        self.error: SbusError = RemoteRefusal(ErrorCode.EPERM, "only users with the vouch right can report losses")
        self.asked: list[tuple[bytes, bytes]] = []
        self.reports: list[str] = []
        self.now = 0.0
        self.features = b"units\nvouch"
        self.right = VouchRight(self.ask, self.reports.append, lambda: self.now)

    async def ask(self, key: bytes, payload: bytes) -> bytes:
        self.asked.append((key, payload))
        if key == b"!/bus/features":
            return self.features
        raise self.error

    def problem(self) -> str:
        return asyncio.run(self.right.problem())


def test_the_answer_is_kept_and_reported_once() -> None:
    bus = VouchRightBus()
    assert "vouch = { users = [" in bus.problem()
    assert bus.problem() in bus.reports
    assert (bus.asked, len(bus.reports)) == ([(b"!/bus/features", b""), (b"lost/for", b"0\0store/no-loss")], 1)
    bus.now = CACHE_SECONDS
    assert bus.problem()
    assert (len(bus.asked), len(bus.reports)) == (4, 1)
    bus.error = RemoteRefusal(ErrorCode.EINVAL, "no pattern")
    bus.right.forget()
    assert bus.problem() == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [(Unanswered("CMSG"), ""), (RemoteRefusal(ErrorCode.EPERM, "rule 1 denies it"), ""), (Closed("the bus"), "")],
)
def test_what_the_bus_can_say(error: SbusError, words: str) -> None:
    bus = VouchRightBus()
    bus.error = error
    assert bus.problem().endswith(words)
    assert bool(bus.problem()) is bool(words)


def test_a_bus_without_the_right_is_named() -> None:
    bus = VouchRightBus()
    bus.features = b"units"
    assert bus.problem().endswith("restart it with a newer sbusd")


def test_calls_at_the_same_time_cause_one_question() -> None:
    bus = VouchRightBus()

    async def ask_all() -> set[str]:
        first = asyncio.ensure_future(bus.right.problem())
        others = [asyncio.ensure_future(bus.right.problem()) for _ in range(30)]
        await asyncio.sleep(0)
        first.cancel()
        return set(await asyncio.gather(*others))

    assert len(asyncio.run(ask_all())) == 1
    assert [key for key, _ in bus.asked] == [b"!/bus/features", b"lost/for"]
