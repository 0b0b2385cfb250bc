"""Random records of busy hosts: every case that the tables of the pipeline distinguish, and hostile input.

Unlike the strategies of ``records`` the rows hang together: a connection has one user, requests have replies, some late, some across the
end of an hour, some twice; subscriptions come and go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.record.schema import Role, Row, RowKind, batch_of
from sbus_archive.record.segments import write_segments
from tests.support.link_states import SENDERS, LinkHistory
from tests.support.records import NOON

_KEYS = ("a/b", "a/b/c", "a/c", "ab/c", "é/ü", r"x\xff/y", "<script>alert(1)</script>/x", "!/cred//1000//x", "", "/", "z", None)
_PATTERNS = ("", "a/", "a/*", "*/b", "a*/c", "a/b/", "!/cred//1000//x", "!/cred//1000//", "z", "z*", "é/ü", r"x\xff/*", "a*b/c", None)
_CODES = ("EACCES", "EPERM", "EDQUOT", "EPROTO", "ETIMEDOUT", None)
_UNITS = ("web.service", "db.service", "<b>.scope", None)


@dataclass(slots=True)
class GrowingRecord:
    """A host's record as it grows: ``rows`` in the order of ``seq``."""

    seed: int
    hours: int = 3
    rows: list[Row] = field(default_factory=list)
    link: LinkHistory = field(default_factory=LinkHistory)

    def fill(self, count: int) -> list[Row]:
        """Add about *count* rows, spread over the hours, and return all."""
        chance = random.Random(self.seed)
        for number in range(count):
            ts = NOON + (number * self.hours * HOUR_NS) // count + chance.randrange(10**6)
            self._add_any(chance, ts, number)
        return self.rows

    def add(self, ts: int, kind: RowKind, **values: Any) -> None:
        """Add one row at *ts*."""
        plain = Row(ts, len(self.rows) + 1, kind.value)
        self.rows.append(plain._replace(**values))

    def add_state(self, chance: random.Random, ts: int) -> None:
        """Add a message with the state of a link at *ts*, or one that looks similar."""
        key, sender = chance.choice(("link/state",) * 20 + ("link/lost/beta", "link/states")), chance.choice(SENDERS)
        self.add(ts, RowKind.MESSAGE, key=key, payload=self.link.payload(chance, ts), recipients=0, **sender)

    def _add_any(self, chance: random.Random, ts: int, number: int) -> None:
        """Add a row of a kind that *chance* says, or a call."""
        conn = chance.randrange(1, 7)
        who: dict[str, Any] = {"conn": conn, "uid": (1000, 1001, None)[conn % 3], "gid": 100, "pid": 5000 + conn, "unit": _UNITS[conn % 4]}
        match chance.choices(("message", "call", "act", "denial", "loss", "missing", "relay", "link"), (8, 6, 5, 1, 1, 1, 1, 3))[0]:
            case "link":
                self.add_state(chance, ts)
            case "message":
                size = chance.choice((None, 0, 7, 400_000))
                counts = {"recipients": chance.randrange(4), "queued": chance.randrange(2), "discarded": chance.choice((0, 0, 0, 2))}
                missed = chance.choice((None, None, [], [chance.randrange(1, 7)], sorted(chance.sample(range(1, 7), 3))))
                to = chance.choice((None, None, chance.randrange(1, 8)))
                self.add(ts, RowKind.MESSAGE, key=chance.choice(_KEYS), payload_bytes=size, missed=missed, to_conn=to, **counts, **who)
            case "call":
                self._add_call(chance, ts, number, who)
            case "act":
                acts = (
                    RowKind.SNAPSHOT,
                    RowKind.SUBSCRIBE,
                    RowKind.SUBSCRIBE,
                    RowKind.SUBSCRIBE,
                    RowKind.UNSUBSCRIBE,
                    RowKind.CONNECT,
                    RowKind.DISCONNECT,
                )
                kind = chance.choice(acts)
                named = kind not in {RowKind.CONNECT, RowKind.DISCONNECT}
                lost = chance.choice((None, 0, 5)) if kind is RowKind.DISCONNECT else None
                ended = chance.choice(({}, {"code": "ETIMEDOUT", "reason": "blocked too long"})) if kind is RowKind.DISCONNECT else {}
                self.add(ts, kind, key=chance.choice(_PATTERNS) if named else None, lost=lost, **ended, **who)
            case "denial":
                words = {"code": chance.choice(_CODES), "reason": chance.choice(("no", None)), "lost": chance.choice((None, 3))}
                self.add(ts, RowKind.DENIAL, key=chance.choice(_KEYS), **words, **who)
            case "loss":
                self.add(ts, RowKind.LOSS, lost=chance.randrange(100), **who)
            case "missing":
                kind = chance.choice((RowKind.TAP_LOSS, RowKind.GAP, RowKind.RESTART))
                self.add(
                    ts,
                    kind,
                    lost=chance.choice((None, 9)),
                    duration=chance.choice((None, 1_999, 5 * 10**9)),
                    reason=chance.choice((None, "disk")),
                )
            case "relay":
                outcome = {"code": chance.choice(("OK", "ETIMEDOUT")), "twin": chance.randrange(3), "attempt": chance.randrange(1, 4)}
                self.add(ts, RowKind.RELAY, call_cmd="echo", call_id=number, duration=chance.choice((None, 10**9)), **outcome)

    def _add_call(self, chance: random.Random, ts: int, number: int, who: dict[str, Any]) -> None:
        """Add a request, perhaps twice, and its replies: none, one or two, at once, late or too late."""
        call = {"call_id": self.seed << 32 | number, "call_cmd": chance.choice(("echo", "<i>", None))}
        allowed = chance.choice((None, 5, 1 << 62))
        for _ in range(chance.choice((1, 1, 2))):
            self.add(
                ts,
                RowKind.MESSAGE,
                key="rpc/echo",
                call_role=Role.REQUEST.value,
                call_exp=allowed,
                recipients=chance.randrange(2),
                **call,
                **who,
            )
        for _ in range(chance.choice((0, 1, 1, 2))):
            delay = chance.choice((0, 999, 63_000, 64_000, 65_000, 123_456_789, 5 * 10**9, 6 * 10**9, 599 * 10**9, 601 * 10**9))
            callee = {
                "conn": 9,
                "uid": chance.choice((0, 1002)),
                "unit": "echo.service",
                "recipients": 1,
                "call_failed": chance.choice((None, False, True)),
            }
            self.add(ts + delay, RowKind.MESSAGE, key="!/conn/1/r", call_role=Role.REPLY.value, **call, **callee)


def deliver(archive: Path, host: str, rows: Sequence[Row]) -> list[IndexEntry]:
    """Put *rows* of *host* into *archive* as one write-ahead's segments; return their entries."""
    (archive / "index").mkdir(parents=True, exist_ok=True)
    return write_segments(archive, host, rows[0].seq, pa.Table.from_batches([batch_of(list(rows))]))
