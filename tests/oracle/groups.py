"""Queue groups of the model: which member of each group gets a message. Rule 13 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sbus.protocol.keys import KeySpace
from sbus.protocol.memberships import split_stored
from sbusd.dataplane.contract import waiting_bytes
from tests.oracle.connection import Connection
from tests.oracle.pools import Payer

SOCKET_BYTES = 768
"""What a packet takes in a socket, besides its bytes."""

GroupName = tuple[Payer, bytes]
"""The user and the name."""


class Groups:
    """Chooses members. *connections* are those of the model, by number."""

    def __init__(self, keyspace: KeySpace, connections: dict[int, Connection]) -> None:
        self._keyspace = keyspace
        self._connections = connections
        self.served: Counter[tuple[int, bytes]] = Counter()
        """When each member last got a message."""
        self._time = 0

    def members(self, key: bytes) -> dict[GroupName, list[Connection]]:
        """Return the members of each group that have a pattern that matches the key, whether they are ending or not."""
        found: dict[GroupName, list[Connection]] = {}
        for connection in self._connections.values():
            names = {group for pattern, group in map(split_stored, connection.patterns) if group and self._keyspace.matches(pattern, key)}
            for name in names:
                found.setdefault((connection.uid, name), []).append(connection)
        return found

    def _choose(self, group: GroupName, candidates: Iterable[Connection], size: int, payer: Payer, cost: int) -> Connection | None:
        """Return the member that gets a packet of *size* bytes, which costs *cost* in a queue; None without candidates.

        A member that will discard the packet is not served by it.
        """
        name = group[1]
        order = {each.number: (each.out.is_closed(payer, cost), each.load(), self.served[each.number, name]) for each in candidates}
        if not order:
            return None
        chosen = self._connections[min(order, key=lambda number: (order[number], number))]
        if not chosen.out.is_closed(payer, cost):
            self.serve(chosen, name, size)
        return chosen

    def serve(self, member: Connection, name: bytes, size: int) -> None:
        """Note that a member of the group *name* gets a packet of *size* bytes."""
        self._time += 1
        self.served[member.number, name] = self._time
        member.measured = member.load() + size + SOCKET_BYTES

    def choose(self, sender: Connection, key: bytes, size: int, to: int) -> list[tuple[Connection, bytes]]:
        """Return the members that get a message of *size* bytes, each with the name of its group; if it is for the connection *to* alone,
        only that one."""
        if to:
            return self._choose_for(sender, key, size, to)
        chosen = []
        for group, members in self.members(key).items():
            candidates = [each for each in members if not each.is_ending and (each is not sender or each.echo)]
            member = self._choose(group, candidates, size, sender.payer, waiting_bytes(size))
            if member is not None:
                chosen.append((member, group[1]))
        return chosen

    def _choose_for(self, sender: Connection, key: bytes, size: int, number: int) -> list[tuple[Connection, bytes]]:
        """Return the connection *number*, with the first group by name as whose member it gets a message for it alone, if there is one."""
        connection = self._connections.get(number)
        if connection is None or connection.is_ending or (connection is sender and not sender.echo):
            return []
        names = sorted(name for (_, name), members in self.members(key).items() if connection in members)
        if names:
            self.serve(connection, names[0], size)
        return [(connection, name) for name in names[:1]]

    def next_member(self, wire: bytes, owner: Payer, payer: Payer) -> Connection | None:
        """Return the member that gets what another one of the user *owner* left; None without one, and for other packets."""
        head, _, rest = wire.partition(b"\0")
        if not head.startswith(b"CMSG !/group/"):
            return None
        if rest.startswith(b"CMSG !/from/"):
            rest = rest.partition(b"\0")[2]
        group = owner, head.removeprefix(b"CMSG !/group/")
        members = self.members(rest.partition(b"\0")[0].removeprefix(b"MSG ")).get(group, [])
        candidates = [each for each in members if not each.is_ending]
        return self._choose(group, candidates, len(wire), payer, waiting_bytes(len(wire)))
