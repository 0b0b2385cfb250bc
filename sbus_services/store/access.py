"""Access by the rules of the bus: the store has no rules of its own, it asks the bus. Decisions are cached for seconds."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sbus.errors import RemoteRefusal, Unanswered
from sbus.protocol import controls
from sbus.protocol.credentials import UNKNOWN_ID, Peer
from sbus.protocol.errors import ErrorCode, SbusError
from sbus.protocol.printable import printable
from sbus.protocol.vouching import loss_payload
from sbus_programs.config.users import ChargedUsers
from sbus_services.store.calls.responses import CallError

CACHE_SECONDS = 5.0
"""How long a decision holds: a changed rule has an effect after this time at most."""

CACHED_USERS = 256
CACHED_IDS = 16
"""Ids of one user whose decisions are cached."""

CACHED_DECISIONS = 4_096
"""Decisions about one id that are cached, so that no user displaces those of others."""

ASKS_PER_SECOND = 500.0
"""Questions to the bus for one user. The bus limits those of the store, and no user may use them up. One answers for many keys."""

ASKS_AT_ONCE = 2_000.0

PUBLISH, SUBSCRIBE = b"publish", b"subscribe"

Ask = Callable[[bytes, bytes], Awaitable[bytes]]
"""Sends a control message to the bus, and returns the response."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the bus has decided, until *until* by the clock."""

    allowed: bool
    is_owner: bool
    reason: str
    until: float


class _Known:
    """The decisions about one uid."""

    def __init__(self) -> None:
        self.exact: OrderedDict[tuple[bytes, bytes], _Decision] = OrderedDict()
        self.prefixes: OrderedDict[bytes, _Decision] = OrderedDict()
        """Decisions about publishing, each for all keys that begin with a prefix."""
        self.lengths: Counter[int] = Counter()

    def find(self, action: bytes, key: bytes, now: float) -> _Decision | None:
        """Return a decision that still holds."""
        found = self.exact.get((action, key))
        if found is None and action == PUBLISH:
            found = next(
                (each for length in self.lengths if (each := self.prefixes.get(key[:length])) is not None and now < each.until), None
            )
        return found if found is not None and now < found.until else None

    def add(self, action: bytes, key: bytes, prefix: bytes | None, decision: _Decision) -> None:
        """Keep a decision."""
        if prefix is None:
            self.exact[action, key] = decision
            self.exact.move_to_end((action, key))
            if len(self.exact) > CACHED_DECISIONS:
                self.exact.popitem(last=False)
            return
        if prefix not in self.prefixes:
            self.lengths[len(prefix)] += 1
        self.prefixes[prefix] = decision
        self.prefixes.move_to_end(prefix)
        if len(self.prefixes) > CACHED_DECISIONS:
            oldest, _ = self.prefixes.popitem(last=False)
            self.lengths[len(oldest)] -= 1
            if not self.lengths[len(oldest)]:
                del self.lengths[len(oldest)]


class _User:
    """A user that is charged: how many questions it may cause, and the decisions about each of its ids."""

    def __init__(self, now: float) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._asks = ASKS_AT_ONCE
        self._asked_at = now

    def known(self, uid: int) -> _Known:
        """Return the decisions about *uid*."""
        found = self._known.setdefault(uid, _Known())
        self._known.move_to_end(uid)
        if len(self._known) > CACHED_IDS:
            self._known.popitem(last=False)
        return found

    def may_ask(self, now: float) -> bool:
        """Return whether the bus may be asked for this user, and count it."""
        self._asks = min(ASKS_AT_ONCE, self._asks + (now - self._asked_at) * ASKS_PER_SECOND)
        self._asked_at = now
        if self._asks < 1:
            return False
        self._asks -= 1
        return True


class Access:
    """The decisions of the bus that *ask* reaches; *clock* counts seconds, for tests."""

    def __init__(self, ask: Ask, report: Callable[[str], None], charged: ChargedUsers, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._report = report
        self._charged = charged
        self._clock = clock
        self._users: OrderedDict[int, _User] = OrderedDict()

    def forget(self) -> None:
        """Forget all decisions: there is another bus, or other rules."""
        self._users.clear()

    async def may_publish(self, caller: Peer, keys: Sequence[bytes]) -> list[str]:
        """Return for each of *keys* why *caller* may not publish to it, empty if it may."""
        reasons = dict.fromkeys(keys, "")
        for key in reasons:
            decision = self._known(caller, PUBLISH, key)
            if decision is None:
                decision = await self._decision(caller, PUBLISH, key)  # one after another: the first answers for most others
            if not decision.allowed:
                reasons[key] = f"user {caller.uid} may not publish {printable(key, 128)}: {decision.reason}"
        return [reasons[key] for key in keys]

    async def check_subscribe(self, caller: Peer, patterns: Sequence[bytes]) -> None:
        """Check that *caller* may subscribe to all of *patterns*. Raises CallError (EACCES)."""
        for pattern in patterns:
            decision = await self._decision(caller, SUBSCRIBE, pattern)
            if not decision.allowed:
                words = f"user {caller.uid} may not subscribe to {printable(pattern, 128)}: {decision.reason}"
                raise CallError("EACCES", words)

    async def may_subscribe(self, caller: Peer, patterns: Sequence[bytes]) -> bool:
        """Return whether *caller* may subscribe to all of *patterns*."""
        return all([(await self._decision(caller, SUBSCRIBE, pattern)).allowed for pattern in patterns])

    async def is_owner(self, caller: Peer) -> bool:
        """Return whether *caller* is root or another owner of the bus."""
        return caller.uid == 0 or (await self._decision(caller, SUBSCRIBE, b"")).is_owner

    async def check_owner(self, caller: Peer, what: str) -> None:
        """Check that *caller* owns the bus. Raises CallError (EACCES)."""
        if not await self.is_owner(caller):
            raise CallError("EACCES", f"user {caller.uid} may not {what}: only root and the owners of the bus may")

    def _known(self, caller: Peer, action: bytes, key: bytes) -> _Decision | None:
        """Return the decision if the bus need not be asked."""
        user = self._users.get(self._charged.of(caller.uid))
        return None if user is None else user.known(caller.uid).find(action, key, self._clock())

    async def _decision(self, caller: Peer, action: bytes, key: bytes) -> _Decision:
        """Return the decision, if necessary by the bus. Raises CallError."""
        if caller.uid == UNKNOWN_ID:
            raise CallError("EACCES", "the caller is not a user of this host")
        now = self._clock()
        charged = self._charged.of(caller.uid)
        user = self._users.get(charged)
        if user is None:
            user = self._users[charged] = _User(now)
            if len(self._users) > CACHED_USERS:
                self._users.popitem(last=False)
        self._users.move_to_end(charged)
        known = user.known(caller.uid)
        if (decision := known.find(action, key, now)) is not None:
            return decision
        if not user.may_ask(now):
            words = f"the rules of the bus were asked about too many different keys for user {charged}: at most {ASKS_PER_SECOND:.0f}/s"
            raise CallError("EDQUOT", f"{words}; try again later, or use fewer keys")
        return await self._asked(caller.uid, action, key, known)

    async def _asked(self, uid: int, action: bytes, key: bytes, known: _Known) -> _Decision:
        """Ask the bus."""
        try:
            answer = json.loads(await self._ask(controls.EXPLAIN, b"%d\0%b\0%b" % (uid, action, key)))
            until = self._clock() + CACHE_SECONDS
            decision = _Decision(answer["allowed"] is True, answer.get("owner") is True, str(answer.get("reason", "")), until)
            if decision.allowed or "groups_from" not in answer or answer["groups_from"] is not None:
                # Of a user whose groups the bus does not remember, one that has just gone, a denial may be true for this moment only.
                known.add(action, key, _prefix(answer), decision)
        except RemoteRefusal as refusal:
            self._report(f"the bus does not let the store ask about the rights of users: {refusal}; see sbus-store(8), ACCESS")
            raise CallError(
                "EACCES", "the store may not ask the bus about the rights of users; its administrator finds why in its log"
            ) from None
        except (SbusError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CallError("EAGAIN", f"the bus did not say whether user {uid} is allowed to: {error}") from None
        return decision


def _prefix(answer: dict[str, object]) -> bytes | None:
    """Return the prefix for whose keys the same is decided, or None if it is only for one key."""
    if isinstance(encoded := answer.get("prefix_base64"), str):
        return base64.b64decode(encoded)
    return text.encode() if isinstance(text := answer.get("prefix"), str) else None


_NO_LOSS = loss_payload(0, [b"store/no-loss"])
"""A report without recipients: only subscribers of this very pattern would get it."""


class VouchRight:
    """The right of the store's user on the bus that *ask* reaches; *report* gets one line for the log."""

    def __init__(self, ask: Ask, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._report = report
        self._clock = clock
        self._problem = ""
        self._until = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Forget what the bus has said: there is another one."""
        self._until, self._asking = float("-inf"), None

    async def problem(self) -> str:
        """Return why the store may not publish messages, empty if it may; what the bus says holds for :data:`CACHE_SECONDS`."""
        while self._clock() >= self._until:
            # One question for all that wait for its answer; a call that is cancelled does not cancel it for the others.
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._learn())
                self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
            try:
                await asyncio.shield(self._asking)
            except (SbusError, OSError):
                return ""  # it is not known; a message that the bus refuses is logged
        return self._problem

    async def _learn(self) -> None:
        """Ask the bus. Raises SbusError, OSError."""
        problem = await self._asked()
        if problem and problem != self._problem:
            self._report(problem)
        self._problem, self._until = problem, self._clock() + CACHE_SECONDS

    async def _asked(self) -> str:
        """Report a loss without recipients, which the bus answers only if the right is missing."""
        if b"vouch" not in (await self._ask(controls.FEATURES, b"")).split(b"\n"):
            return "the bus does not know the right vouch, which the store needs to publish messages: restart it with a newer sbusd"
        try:
            await self._ask(controls.LOST_FOR, _NO_LOSS)
        except RemoteRefusal as refusal:
            if refusal.code is not ErrorCode.EPERM or "vouch" not in refusal.words:
                return ""  # a rule refuses the pattern
            uid = os.geteuid()
        except Unanswered:
            return ""
        else:
            return ""
        words = f"user {uid}, whose process the store is, does not have the right vouch, so it cannot publish messages"
        return f'{words}: add "[rights]" and "vouch = {{ users = [{uid}] }}" to sbusd.toml(5), or set publish = false for the stream'
