"""One rule at work: what each message causes, and the counters. No I/O.

Regular expressions are not used: some of them need exponential time for a text that a user writes into the journal.
"""

from __future__ import annotations

import enum
import json
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from sbus import Bus
from sbus.errors import SbusError
from sbus.items import Message
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, local_author
from sbus_programs.config.trigger import EVERY_USER, MAX_UNIT_BYTES, Rate, TriggerRule
from sbus_programs.config.users import ChargedUsers

ANSWER_SECONDS = 5.0


def warnings(bus: str, rules: Iterable[TriggerRule]) -> list[str]:
    """Return one line for each of *rules* with keys that a user whom no rule of *bus* names may publish to.

    If the bus is not available, the only line says so.
    """
    closed = [rule for rule in rules if rule.when == "message" and EVERY_USER not in rule.senders]
    if not closed:
        return []
    try:
        with Bus.connect(bus, timeout=ANSWER_SECONDS, name="sbus-trigger check") as asking:
            found = [(rule.title, [key for key in rule.keys if _is_open(asking, key)]) for rule in closed]
    except (SbusError, OSError, ValueError, KeyError, TypeError) as error:
        return [f"cannot check who may publish to the keys of the rules: {error}"]
    return [
        f"rule {title}: every user may publish to {', '.join(keys)}: add a [[policy]] to sbusd.toml that permits only the users in from"
        for title, keys in found
        if keys
    ]


def _is_open(bus: Bus, pattern: str) -> bool:
    """Return whether a user whom no rule names may publish to a key that *pattern* matches. Raises SbusError, ValueError, KeyError."""
    key = pattern.replace("*", "x") + ("x" if pattern.endswith("/") or not pattern else "")
    answer = json.loads(bus.control(controls.EXPLAIN, b"\0publish\0" + key.encode()))
    return bool(answer["allowed"])


@dataclass(frozen=True, slots=True)
class Sender:
    """A process of a user of this host. ``charged`` is the user whose limits it takes; ``voucher`` is the user of the service that
    passed its message on, or None."""

    uid: int
    gid: int
    pid: int
    charged: int
    voucher: int | None = None


def sender_of(rule: TriggerRule, peer: Peer | None, charged: ChargedUsers) -> Sender | None:
    """Return the sender of a message if it counts for *rule*, else None."""
    found = _local(rule.vouched_by, peer, charged)
    return found if found is not None and (found.uid in rule.senders or EVERY_USER in rule.senders) else None


def _local(vouchers: Collection[int], peer: Peer | None, charged: ChargedUsers) -> Sender | None:
    """Return the process of this host that *peer* is, or for which one of *vouchers* vouches; None for all others."""
    if peer is None:
        return None
    if not peer.origin_bytes:
        return Sender(peer.uid, peer.gid, peer.pid, charged.of(peer.uid))
    voucher = peer.voucher
    author = local_author(peer.origin_bytes)
    if author is None or voucher is None or voucher.uid not in vouchers:
        return None
    return Sender(author.uid, author.gid, author.pid, charged.of(author.uid), voucher.uid)


def text_matches(glob: str, text: str) -> bool:
    """Return whether the whole *text* matches *glob*, in which ``*`` matches any characters.

    Each part between two stars is searched once, at its first place after the part before: an earlier place never matches less.
    """
    first, *rest = glob.split("*")
    if not rest:
        return text == glob
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    begin, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, begin, end)
        if found < 0:
            return False
        begin = found + len(part)
    return True


class Payload:
    """The payload of a message; it is parsed when a condition needs that."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._members: dict[str, object] | None = None

    def matches(self, conditions: Sequence[tuple[str, str]]) -> bool:
        """Return whether all *conditions* hold: each a member of a JSON object, or the payload as text if it is empty."""
        return all(any(text_matches(glob, text) for text in self.texts(name)) for name, glob in conditions)

    def texts(self, name: str) -> list[str]:
        """Return the values of a member as texts: several of a list, none if it is missing, null or an object."""
        if not name:
            return [self._content.decode("utf-8", "replace")]
        value = self._object().get(name)
        return [text for each in (value if isinstance(value, list) else [value]) if (text := _text(each)) is not None]

    def _object(self) -> dict[str, object]:
        """Return the members of the payload, none if it is not a JSON object."""
        if self._members is None:
            try:
                value = json.loads(self._content)
            except (ValueError, RecursionError):
                value = None
            self._members = value if isinstance(value, dict) else {}
        return self._members


def _text(value: object) -> str | None:
    """Return a JSON value as text: numbers and booleans as JSON writes them."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) else None


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.")

_numbers = count(1)


class UnitNameError(ValueError):
    """The message has no valid instance."""


def escaped(text: bytes) -> str:
    r"""Return *text* as systemd-escape(1) does: ``/`` becomes ``-``, other bytes outside of ``[A-Za-z0-9:_.]`` become ``\xNN``.

    A ``.`` at the beginning is escaped too, so the result is neither ``..`` nor the name of a hidden file.
    """
    parts = ["-" if byte == 0x2F else chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in text]
    if text.startswith(b"."):
        parts[0] = "\\x2e"
    return "".join(parts)


def unit_of(rule: TriggerRule, key: bytes) -> str:
    """Return the unit of *rule* for a message with *key*.

    Raises:
        UnitNameError: the key has no such segment, or the name would be longer than systemd allows.
    """
    if not rule.is_template:
        return rule.unit
    prefix, _, suffix = rule.unit.partition("@.")
    name = f"{prefix}@{_instance(rule, key)}.{suffix}"
    if len(name) > MAX_UNIT_BYTES:
        raise UnitNameError(f"the name of the unit would have {len(name)} bytes, at most {MAX_UNIT_BYTES} are allowed")
    return name


def _instance(rule: TriggerRule, key: bytes) -> str:
    """Return the instance, which is not empty. Raises UnitNameError."""
    if rule.instance == "message":
        # Unique over restarts of the trigger too.
        return f"{time.time_ns():x}.{next(_numbers)}"
    if isinstance(rule.instance, int):
        segments = key.split(b"/")
        key = segments[rule.instance - 1] if rule.instance <= len(segments) else b""
    if not key:
        raise UnitNameError(f"the key has no text in segment {rule.instance}" if isinstance(rule.instance, int) else "the key is empty")
    return escaped(key)


MAX_USERS = 1_024
"""Users whose times are kept for a rule. The least recent one is forgotten; the limit of all users together still holds."""

ALL_USERS = 10
"""The burst of all users together, in multiples of that of one."""

FIRST_ACTIONS = 5
"""The part of it that is kept for users with no action in the interval, in the same unit: no few users can use up the burst of all."""


class RateDecision(enum.Enum):
    """What the limits say about one message; the value is the name of its counter."""

    ALLOWED = "accepted"
    BURST = "over_burst"
    ALL_BURST = "over_burst_of_all"
    """The user is within the limit, and all users together are not."""
    LOOP = "loop"
    """The first message over the limit for loops: the rule is suspended for its user from now on."""
    SUSPENDED = "suspended"


class _Window:
    """The times of the last actions within an interval."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def count(self, interval: float, now: float) -> int:
        """Return the number of actions within *interval* before *now*, and forget the others."""
        while self._times and self._times[0] <= now - interval:
            self._times.popleft()
        return len(self._times)

    def add(self, now: float) -> None:
        """Note an action."""
        self._times.append(now)


class _User:
    """The actions for one user."""

    def __init__(self) -> None:
        self.burst = _Window()
        self.loop = _Window()
        self.suspended_until = 0.0


class Limits:
    """The limits of one rule."""

    def __init__(self, burst: Rate, loop: Rate) -> None:
        self._burst = burst
        self._loop = loop
        self._users: OrderedDict[int, _User] = OrderedDict()
        self._all = _Window()

    def suspended(self, now: float) -> int:
        """Return the number of users for whom the rule is suspended."""
        return sum(user.suspended_until > now for user in self._users.values())

    def judge(self, charged: int, now: float) -> RateDecision:
        """Return whether a message of the user *charged* at *now*, in seconds, may cause an action, and count it if so."""
        user = self._users.setdefault(charged, _User())
        self._users.move_to_end(charged)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)
        if now < user.suspended_until:
            return RateDecision.SUSPENDED
        burst, loop = self._burst, self._loop
        own = user.burst.count(burst.interval, now)
        if own >= burst.count:
            return RateDecision.BURST
        if self._all.count(burst.interval, now) >= burst.count * (ALL_USERS - FIRST_ACTIONS if own else ALL_USERS):
            return RateDecision.ALL_BURST
        if user.loop.count(loop.interval, now) >= loop.count:
            user.suspended_until = now + loop.interval
            return RateDecision.LOOP
        for window in (user.burst, user.loop, self._all):
            window.add(now)
        return RateDecision.ALLOWED


JOURNAL_HEAD = b"journal/"

OWN_HEAD = b"trigger/"
"""The beginning of the keys that the trigger itself publishes to."""

_CURSOR = "__CURSOR"
_CURSOR_CHARACTERS = 256
"""Longest cursor that is remembered: twice that of systemd."""

_REMEMBERED_ENTRIES = 1_024
"""Entries of the journal that are remembered: the feed sends its last batch again after it has lost the bus."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One action that a message has caused; without a message, lost messages have."""

    rule: TriggerRule
    unit: str
    key: bytes = b""
    payload: bytes = b""
    sender: Sender | None = None


class RuleState:
    """A rule, its limits, and ``counts``: the numbers of messages by outcome; the names are those of sbus-trigger(8).

    *charged* says whose limits a sender takes.
    """

    def __init__(self, rule: TriggerRule, charged: ChargedUsers) -> None:
        self.rule = rule
        self._charged = charged
        self.limits = Limits(rule.burst, rule.loop)
        self.counts: Counter[str] = Counter()
        self.problem = ""
        """Why the last message was not used, for the log."""
        self._entries: OrderedDict[str, None] = OrderedDict()

    def judge(self, message: Message, now: float) -> tuple[str, Firing | None]:
        """Return the outcome of *message* at *now*, seconds of a clock that is not set, and the action that it causes, if any."""
        # A wildcard can match the trigger's own messages; then each action would cause the next one.
        outcome, firing = ("unmatched", None) if message.key_bytes.startswith(OWN_HEAD) else self._judged(message, now)
        self.counts["messages"] += 1
        self.counts[outcome] += 1
        return outcome, firing

    def sender(self, peer: Peer | None) -> Sender | None:
        """Return the sender of a message or call if it counts, else None, and why as ``problem``."""
        sender = sender_of(self.rule, peer, self._charged)
        if sender is None:
            name = "unknown" if peer is None else peer.origin or f"user {peer.uid}"
            self.problem = f"its sender, {name}, is not in from"
        return sender

    def admit(self, sender: Sender, key: bytes, payload: bytes, now: float) -> tuple[str, Firing | None]:
        """Return the outcome of a message or call that meets the conditions, by the limits of its sender, and its action, if any."""
        rule = self.rule
        try:
            unit = unit_of(rule, key)
        except UnitNameError as error:
            self.problem = str(error)
            return "invalid", None
        verdict = self.limits.judge(sender.charged, now)
        if verdict is RateDecision.ALLOWED:
            return "accepted", Firing(rule, unit, key, payload, sender)
        if verdict is RateDecision.BURST:
            self.problem = f"user {sender.charged} has sent more than {rule.burst.count} in {rule.burst.interval:g} s"
        elif verdict is RateDecision.ALL_BURST:
            self.problem = (
                f"all users together have caused their maximum of actions in {rule.burst.interval:g} s; see burst in trigger.toml(5)"
            )
        elif verdict is RateDecision.LOOP:
            self.problem = f"user {sender.charged} has caused {rule.loop.count} actions in {rule.loop.interval:g} s"
        return verdict.value, None

    def gap(self, lost: int) -> Firing | None:
        """Note that messages are missing, *lost* of them or an unknown number if 0; return the action that this causes, if any."""
        self.counts["gaps"] += 1
        self.counts["lost"] += lost
        return Firing(self.rule, self.rule.unit) if self.rule.on_gap == "fire" else None

    def _judged(self, message: Message, now: float) -> tuple[str, Firing | None]:
        sender = self.sender(message.sender)
        if sender is None:
            return "wrong_sender", None
        payload = Payload(message.payload)
        if not payload.matches(self.rule.match):
            return "unmatched", None
        if message.key_bytes.startswith(JOURNAL_HEAD) and self._is_repeated(payload):
            return "repeated", None
        return self.admit(sender, message.key_bytes, message.payload, now)

    def _is_repeated(self, payload: Payload) -> bool:
        """Return whether this entry of the journal has come before, and remember it."""
        cursor = next(iter(payload.texts(_CURSOR)), "")[:_CURSOR_CHARACTERS]
        if not cursor:
            return False
        if cursor in self._entries:
            return True
        self._entries[cursor] = None
        if len(self._entries) > _REMEMBERED_ENTRIES:
            self._entries.popitem(last=False)
        return False
