"""What each stream, user and queue has: counted in memory as messages come and go, and saved with each transaction.

Counting them in the tables would take longer, the more the store holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from sbus_programs.config.users import ChargedUsers
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.messages import NO_UID, EngineError, Sender
from sbus_services.store.engine.schema import message_id

HOST_HEAD = "/!/cred/"
"""What ends the host in the origin of a message, sbus-protocol(7)."""


@dataclass(slots=True, eq=False)
class StreamFigures:
    """The figures of one stream; ``id`` is its number in the file."""

    id: int
    name: str
    last_seq: int = 0
    messages: int = 0
    bytes: int = 0
    keys: int = 0
    gaps: int = 0
    removed: int = 0
    removed_seq: int = 0
    is_keyed: int = 0


@dataclass(slots=True, eq=False)
class UsageFigures:
    """The figures of one account in one stream."""

    stream: int
    account: int
    messages: int = 0
    bytes: int = 0
    keys: int = 0
    ids: int = 0

    def is_empty(self) -> bool:
        """Return whether the account has nothing in the stream."""
        return not (self.messages or self.bytes or self.keys or self.ids)


@dataclass(slots=True, eq=False)
class QueueFigures:
    """The figures of one queue: its jobs by state, in the order of the states."""

    id: int
    name: str
    stream: int
    is_ordered: int = 0
    left_seq: int | None = None
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    retrying: int = 0
    blocked: int = 0
    dead: int = 0
    dated: int = 0
    dropped_dead: int = 0

    def move(self, old: int | None, new: int | None, count: int = 1) -> None:
        """Count *count* jobs whose state changes from *old* to *new*; None: outside of the queue."""
        if old is not None:
            setattr(self, _STATE_NAMES[old], getattr(self, _STATE_NAMES[old]) - count)
        if new is not None:
            setattr(self, _STATE_NAMES[new], getattr(self, _STATE_NAMES[new]) + count)


Figures = StreamFigures | UsageFigures | QueueFigures

_STREAM = ("name", "last_seq", "messages", "bytes", "keys", "gaps", "removed", "removed_seq", "is_keyed")
_USAGE = ("messages", "bytes", "keys", "ids")
_STATE_NAMES = ("ready", "leased", "delayed", "retrying", "blocked", "dead", "dated")
_QUEUE = ("name", "stream", "is_ordered", "left_seq", *_STATE_NAMES, "dropped_dead")

_FIELDS: dict[type, tuple[str, ...]] = {StreamFigures: _STREAM, UsageFigures: _USAGE, QueueFigures: _QUEUE}
_VALUES = {kind: attrgetter(*names) for kind, names in _FIELDS.items()}

_SAVE_STREAM = f"INSERT OR REPLACE INTO stream (id, {', '.join(_STREAM)}) VALUES ({', '.join('?' * (1 + len(_STREAM)))})"
_SAVE_QUEUE = f"INSERT OR REPLACE INTO queue (id, {', '.join(_QUEUE)}) VALUES ({', '.join('?' * (1 + len(_QUEUE)))})"
_SAVE_USAGE = f"INSERT OR REPLACE INTO usage (stream, account, {', '.join(_USAGE)}) VALUES (?, ?, ?, ?, ?, ?)"
_DROP_USAGE = "DELETE FROM usage WHERE stream = ? AND account = ?"
_SAVE_LEASE = "UPDATE number SET value = ? WHERE name = 'lease'"
_NEWEST_DATE = "SELECT time FROM message WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
_LOAD_STREAMS = f"SELECT id, {', '.join(_STREAM)} FROM stream"
_LOAD_QUEUES = f"SELECT id, {', '.join(_QUEUE)} FROM queue"
_LEASES = "SELECT uid, COUNT(*) FROM job WHERE connection IS NOT NULL GROUP BY uid"
_LOAD_USAGE = f"SELECT stream, account, {', '.join(_USAGE)} FROM usage"


class AllFigures:
    """The figures of all streams, accounts and queues: a cache of the database."""

    def __init__(self, database: Database) -> None:
        """Read them. Raises sqlite3.Error."""
        self._database = database
        self._log = database.undo_log
        self.streams: dict[str, StreamFigures] = {}
        self.queues: dict[int, QueueFigures] = {}
        self.usage: dict[int, dict[int, UsageFigures]] = {}
        """Of each stream, by its number, the figures of each account."""
        self.charged = ChargedUsers()
        """Who is charged for a uid, until :meth:`charge` says it again."""
        self.leases: dict[int, int] = {}
        """The number of leased jobs of each user that is charged."""
        self.readers: dict[tuple[int, int], int] = {}
        """The number of durable readers, by stream and user."""
        self.last_lease = 0
        self._hosts: dict[str, int] = {}
        self._dirty: set[Figures] = set()
        self.load()
        database.caches.append(self)

    def load(self) -> None:
        """Read all figures from the file. Streams and queues stay the same objects."""
        run = self._database.execute
        streams, queues = self.streams, {each.id: each for each in self.queues.values()}
        self.streams = {row[1]: _loaded(StreamFigures, _STREAM, row, streams.get(row[1])) for row in run(_LOAD_STREAMS)}
        self.queues = {row[0]: _loaded(QueueFigures, _QUEUE, row, queues.get(row[0])) for row in run(_LOAD_QUEUES)}
        self.usage = {stream.id: {} for stream in self.streams.values()}
        for row in run(_LOAD_USAGE):
            self.usage.setdefault(row[0], {})[row[1]] = UsageFigures(*row)
        self._count_leases()
        readers = run("SELECT stream, uid, COUNT(*) FROM reader GROUP BY stream, uid").fetchall()
        self.readers = {(stream, uid): count for stream, uid, count in readers}
        ((self.last_lease,),) = run("SELECT value FROM number WHERE name = 'lease'").fetchall()
        self._hosts = dict(run("SELECT name, id FROM host").fetchall())
        self._dirty.clear()

    def save(self) -> None:
        """Write what has changed into the file."""
        run = self._database.execute
        for each in filter(self._is_known, self._dirty):
            values = _VALUES[type(each)](each)
            if isinstance(each, StreamFigures):
                run(_SAVE_STREAM, (each.id, *values))
            elif isinstance(each, QueueFigures):
                run(_SAVE_QUEUE, (each.id, *values))
            elif each.is_empty():
                run(_DROP_USAGE, (each.stream, each.account))
                self.usage.get(each.stream, {}).pop(each.account, None)
            else:
                run(_SAVE_USAGE, (each.stream, each.account, *values))
        if self._dirty:
            run(_SAVE_LEASE, (self.last_lease,))
        self._dirty.clear()

    def committed(self) -> None:
        """Nothing: the figures are those of the file."""

    def _is_known(self, figures: Figures) -> bool:
        """Return whether *figures* are still those of a stream, account or queue."""
        if isinstance(figures, StreamFigures):
            return self.streams.get(figures.name) is figures
        if isinstance(figures, QueueFigures):
            return self.queues.get(figures.id) is figures
        return self.usage.get(figures.stream, {}).get(figures.account) is figures

    def change(self, figures: Figures) -> None:
        """Note that *figures* will be changed."""
        kind = type(figures)
        self._log.attributes(figures, _FIELDS[kind], _VALUES[kind])
        self._dirty.add(figures)

    def charge(self, charged: ChargedUsers) -> None:
        """Charge users as *charged* says, from now on also for the jobs that they have. It is asked only by the thread of the file."""
        self.charged = charged
        self._count_leases()

    def _count_leases(self) -> None:
        """Count the leased jobs of each user from scratch."""
        self.leases = {}
        for uid, count in self._database.execute(_LEASES).fetchall():
            user = self.charged.of(uid)
            self.leases[user] = self.leases.get(user, 0) + count

    def lease_room(self, uid: int, most: int) -> int:
        """Return how many jobs *uid* may take, if a user may have *most*. Raises EngineError if it has them."""
        user = self.charged.of(uid)
        room = most - self.leases.get(user, 0)
        if room <= 0:
            raise EngineError("EDQUOT", f"user {user} has {most} jobs, the maximum; finish some first")
        return room

    def raise_last_lease(self, number: int) -> None:
        """Let the next leases have numbers above *number*."""
        self.last_lease = max(self.last_lease, number)
        self._database.execute(_SAVE_LEASE, (self.last_lease,))

    def add_leases(self, uid: int, count: int) -> None:
        """Count *count* more leased jobs of *uid*."""
        self._add(self.leases, self.charged.of(uid), count)

    def add_readers(self, stream: StreamFigures, uid: int, count: int) -> None:
        """Count *count* more readers of the user *uid*."""
        self._add(self.readers, (stream.id, uid), count)

    def _add(self, counts: dict[Key, int], key: Key, count: int) -> None:
        """Count *count* more of *key*. A key without any has no entry: a user can have many."""
        self._log.entry(counts, key)
        counts[key] = counts.get(key, 0) + count
        if not counts[key]:
            del counts[key]

    def usage_of(self, stream: StreamFigures, account: int) -> UsageFigures:
        """Return the figures of *account* in *stream*, to be changed."""
        accounts = self.usage[stream.id]
        found = accounts.get(account)
        if found is None:
            found = UsageFigures(stream.id, account)
            self._log.entry(accounts, account)
            accounts[account] = found
        self.change(found)
        return found

    def account_of(self, sender: Sender) -> int:
        """Return the account that pays for what *sender* stores: the user that is charged for it, or a negative number for its host."""
        if not sender.origin:
            return self.charged.of(sender.uid)
        host = sender.origin.partition(HOST_HEAD)[0]
        number = self._hosts.get(host)
        if number is None:
            run = self._database.execute
            run("INSERT OR IGNORE INTO host (name) VALUES (?)", (host,))
            ((number,),) = run("SELECT id FROM host WHERE name = ?", (host,)).fetchall()
            self._log.entry(self._hosts, host)
            self._hosts[host] = number
        return NO_UID - number

    def text(self, name: str) -> str:
        """Return a text of the file, empty if it has none."""
        return next((value for (value,) in self._database.execute("SELECT value FROM text WHERE name = ?", (name,)).fetchall()), "")

    def set_text(self, name: str, value: str) -> None:
        """Set a text of the file, if it is another one."""
        if value != self.text(name):
            self._database.execute("INSERT OR REPLACE INTO text VALUES (?, ?)", (name, value))

    def newest_date(self) -> int:
        """Return the date of the newest message of all streams, 0 without one."""
        found = [
            self._database.execute(_NEWEST_DATE, (message_id(each.id, 0), message_id(each.id, each.last_seq))).fetchall()
            for each in self.streams.values()
        ]
        return max((rows[0][0] for rows in found if rows), default=0)

    def hosts(self) -> dict[int, str]:
        """Return the name of each host by its account."""
        return {NO_UID - number: name for name, number in self._hosts.items()}

    def add_stream(self, name: str) -> StreamFigures:
        """Return the figures of the stream with that name, which are new if they were unknown."""
        found = self.streams.get(name)
        if found is None:
            number = max((each.id for each in self.streams.values()), default=0) + 1
            found = StreamFigures(number, name)
            self._log.entry(self.streams, name)
            self.streams[name] = found
            self._log.entry(self.usage, number)
            self.usage[number] = {}
            self.change(found)
        return found

    def add_queue(self, name: str, stream: StreamFigures) -> QueueFigures:
        """Return the figures of the queue with that name and stream, which are new if they were unknown."""
        for each in self.queues_of(stream):
            if each.name == name:
                return each
        found = QueueFigures(max(self.queues, default=0) + 1, name, stream.id)
        found.left_seq = 0
        self._log.entry(self.queues, found.id)
        self.queues[found.id] = found
        self.change(found)
        return found

    def queues_of(self, stream: StreamFigures) -> list[QueueFigures]:
        """Return the queues of *stream*, configured or not."""
        return [each for each in self.queues.values() if each.stream == stream.id]

    def drop(self, stream: StreamFigures) -> None:
        """Forget an empty *stream* that is not configured, with its queues."""
        run = self._database.execute
        run("DELETE FROM stream WHERE id = ?", (stream.id,))
        for table in ("usage", "run_start", "unpublished", "ended"):  # the next stream gets the number
            run(f"DELETE FROM {table} WHERE stream = ?", (stream.id,))
        self._log.entry(self.streams, stream.name)
        del self.streams[stream.name]
        self._log.entry(self.usage, stream.id)
        del self.usage[stream.id]
        for each in self.queues_of(stream):
            run("DELETE FROM queue WHERE id = ?", (each.id,))
            self._log.entry(self.queues, each.id)
            del self.queues[each.id]


Kind = TypeVar("Kind", StreamFigures, QueueFigures)
Key = TypeVar("Key", int, tuple[int, int])


def _loaded(kind: type[Kind], names: tuple[str, ...], row: tuple[Any, ...], known: Kind | None) -> Kind:
    """Return the figures in *row*: those that are *known*, with new values, or new ones."""
    if known is None or known.id != row[0]:
        return kind(*row)
    for name, value in zip(names, row[1:], strict=True):
        setattr(known, name, value)
    return known
