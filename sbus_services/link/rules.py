"""What may leave this host and what may come in: the rules of the link, checked and ready to use."""

from __future__ import annotations

from dataclasses import dataclass

from sbus.protocol.keys import KeySpace, Reach, pattern_matches
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.link import is_name

NEVER_EXPORTED = (b"!/", b"host/", b"rpc/", b"relay/", b"relayed/")
"""Keys with these heads stay on their host, whatever a rule says."""


def is_exportable(key: bytes) -> bool:
    """Return whether any rule can let *key* leave its host under the key itself."""
    return not key.startswith(NEVER_EXPORTED)


@dataclass(frozen=True, slots=True)
class Export:
    """``[[export]]``: messages whose keys match *keys* may leave for *hosts*; None: for every host of the realm.

    ``keys`` is a pattern with a literal first segment. ``rate`` is in messages per second, None: unlimited. ``max_payload`` is in bytes.
    Messages beyond these two limits are lost for the other hosts, which is counted and reported there.

    Raises:
        ValueError: a value is out of range, or *keys* can never leave the host.
    """

    keys: bytes
    hosts: frozenset[str] | None = None
    rate: int | None = None
    max_payload: int = MAX_PACKET_BYTES
    max_blob: int = 0
    """Largest size of a blob that these hosts may pull if such a message refers to it, in bytes; 0: none."""

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        _check_ordinary(self.keys)
        if self.rate is not None and self.rate < 1:
            raise ValueError(f"invalid rate {self.rate}: it must be at least 1 message per second")
        if not 0 <= self.max_payload <= MAX_PACKET_BYTES:
            raise ValueError(f"invalid max_payload {self.max_payload}: it must be 0 to {MAX_PACKET_BYTES} bytes")

    def permits(self, host: str) -> bool:
        """Return whether messages may leave for *host*."""
        return self.hosts is None or host in self.hosts


@dataclass(frozen=True, slots=True)
class Import:
    """``[[import]]``: messages of *hosts* (None: of every host) whose keys at their origin match *keys* may come in.

    They get the key ``host/<origin>/<key>``, or with ``shared`` keep their key; then *keys* needs a literal first segment.

    Raises:
        ValueError: *keys* matches nothing, or a shared import would let in keys that no host exports.
    """

    keys: bytes
    hosts: frozenset[str] | None = None
    shared: bool = False
    max_blob: int = 0
    """Largest size of a blob that users here may pull if such a message refers to it, in bytes; 0: none."""

    def __post_init__(self) -> None:
        _check_hosts(self.hosts)
        if self.shared:
            _check_ordinary(self.keys)
        elif b"\0" in self.keys or not Reach(KeySpace(), self.keys).touches(b""):
            raise ValueError(f"invalid keys {self.keys!r}: the pattern matches no key")

    def permits(self, host: str) -> bool:
        """Return whether messages of *host* may come in."""
        return self.hosts is None or host in self.hosts


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of one link. The first rule that matches a key, and permits the host of an import, decides.

    ``secret_hosts`` are the hosts with which users exchange private messages; None: all. ``secret_head`` is ``!/cred//<uid>//`` with the
    user of the link, under which its bus gives it such messages.

    Raises:
        ValueError: a name is invalid.
    """

    realm: str
    host: str
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    secret_hosts: frozenset[str] | None = frozenset()
    secret_head: bytes = b""
    spool_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        for what, name in (("realm", self.realm), ("host", self.host)):
            if not is_name(name):
                raise ValueError(f"invalid {what} {name!r}: it must be 1 to 63 letters, digits, '_' and '-'")
        _check_hosts(self.secret_hosts)
        if self.spool_bytes < 0:
            raise ValueError(f"invalid spool {self.spool_bytes}: it must be at least 0 bytes")

    def export_of(self, key: bytes) -> Export | None:
        """Return the rule that decides about *key*, or None if it stays on this host."""
        if not is_exportable(key):
            return None
        return next((rule for rule in self.exports if pattern_matches(rule.keys, key)), None)

    def import_of(self, origin: str, key: bytes) -> Import | None:
        """Return the rule that decides about *key* of the host *origin*, or None if it does not come in."""
        if not is_exportable(key):
            return None
        return next((rule for rule in self.imports if rule.permits(origin) and pattern_matches(rule.keys, key)), None)

    def exchanges_secrets(self, host: str) -> bool:
        """Return whether users of this host and of *host* may send each other private messages."""
        return self.secret_hosts is None or host in self.secret_hosts


def _check_hosts(hosts: frozenset[str] | None) -> None:
    """Raise ValueError if one of *hosts* cannot be the name of a host."""
    for host in sorted(hosts or ()):
        if not is_name(host):
            raise ValueError(f"invalid host {host!r}: it must be 1 to 63 letters, digits, '_' and '-'")


def _check_ordinary(keys: bytes) -> None:
    """Raise ValueError unless *keys* is a pattern with a literal first segment, of keys that may leave their host."""
    first, slash, _ = keys.partition(b"/")
    if not first or b"*" in first:
        raise ValueError(f"invalid keys {keys!r}: the first segment must be literal")
    if b"\0" in keys or not Reach(KeySpace(), keys).touches(b""):
        raise ValueError(f"invalid keys {keys!r}: the pattern matches no key")
    if slash and first + slash in NEVER_EXPORTED:
        raise ValueError(f"invalid keys {keys!r}: keys below {(first + slash).decode()} never leave their host")
