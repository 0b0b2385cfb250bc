"""Which subjects a host may publish and subscribe to. Each peer enforces it, or a NATS server with the configuration made here.

A host publishes under its own name only, so no host can forge the origin of a message. What is for one host alone can only be read there.
`sbus_services.link.subjects` describes the subjects.

A NATS server enforces them. It closes a connection that is silent for 6 s: with the server's own default, it would
notice a partition after minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sbus_programs.config.link import is_name

ANY, REST = "*", ">"
"""The wildcards of NATS: exactly one token, and one or more tokens at the end. A star within a token is not one, and nothing is reserved,
so `sbus.protocol.keys` and `sbus.protocol.pattern_index` would decide otherwise about subjects."""


def published_by(realm: str, host: str) -> tuple[str, ...]:
    """Return the subjects, with wildcards, that *host* may publish to."""
    return f"s.{realm}.m.{host}.>", f"s.{realm}.i.{host}", f"s.{realm}.h.{host}", f"s.{realm}.x.*.{host}"


def received_by(realm: str, host: str) -> tuple[str, ...]:
    """Return the subjects, with wildcards, that *host* may subscribe to."""
    return f"s.{realm}.m.>", f"s.{realm}.i.*", f"s.{realm}.h.*", f"s.{realm}.x.{host}.*"


def covers(allowed: str, subject: str) -> bool:
    """Return whether every subject that *subject* matches, which may have wildcards, matches *allowed* too."""
    wide, narrow = allowed.split("."), subject.split(".")
    for index, token in enumerate(wide):
        if token == REST:
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == REST or (token != narrow[index] and token != ANY):
            return False
    return len(wide) == len(narrow)


def is_within(subject: str, allowed: tuple[str, ...]) -> bool:
    """Return whether one of *allowed* covers *subject*."""
    return any(covers(each, subject) for each in allowed)


MAX_PAYLOAD_BYTES = 1 << 20
"""Longest head and body together. A packet of the bus, of at most 409,600 bytes, always fits."""

_NKEY = re.compile(r"U[A-Z2-7]{55}")
"""The public key of a user: base32, with a checksum that the server verifies."""

_LISTEN = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the configuration depends on.

    Hosts are authenticated by their certificates, which must name them as ``DNS:<host>``. A host in *nkeys* has this public key instead;
    then each host needs one.

    Raises:
        ValueError: a value cannot be used; the text names it.
    """

    realm: str
    hosts: Sequence[str]
    listen: str = "0.0.0.0:4222"
    certificate: str = "/etc/nats/server.pem"
    key: str = "/etc/nats/server.key"
    authority: str = "/etc/nats/authority.pem"
    nkeys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, name in (("realm", self.realm), *(("host", host) for host in self.hosts)):
            if not is_name(name):
                raise ValueError(f"invalid {what} {name!r}: it must be 1 to 63 letters, digits, '_' and '-'")
        if not self.hosts:
            raise ValueError("no hosts: name at least one")
        folded = [host.lower() for host in self.hosts]
        for host in self.hosts:
            # Host names in certificates are compared without regard to case.
            if folded.count(host.lower()) > 1:
                raise ValueError(f"repeated host {host!r}: the names must differ in more than case")
        if not _LISTEN.fullmatch(self.listen) or not 1 <= int(self.listen.rpartition(":")[2]) <= 0xFFFF:
            raise ValueError(f"invalid address {self.listen!r}: it must be a host and a port, such as '10.0.0.1:4222'")
        for host, key in self.nkeys.items():
            if not _NKEY.fullmatch(key):
                raise ValueError(f"invalid nkey {key!r} of host {host!r}: the public key of a user begins with U and has 56 characters")
        if self.nkeys and self.nkeys.keys() != set(self.hosts):
            raise ValueError("nkeys for some hosts only: give one for each host, or none")


def server_configuration(settings: ServerSettings) -> str:
    """Return the text of a file for ``nats-server --config``."""
    users = ",\n".join(_user(settings, host) for host in settings.hosts)
    check = "verify: true" if settings.nkeys else "verify_and_map: true"
    return f"""# Hosts of the realm {settings.realm}; written by sbusctl link config.
# Without user names or passwords: do not add no_auth_user, which would admit clients without credentials.
listen: {json.dumps(settings.listen)}
max_payload: {MAX_PAYLOAD_BYTES}
ping_interval: "2s"
ping_max: 2
write_deadline: "5s"
tls {{
  cert_file: {json.dumps(settings.certificate)}
  key_file: {json.dumps(settings.key)}
  ca_file: {json.dumps(settings.authority)}
  {check}
}}
accounts {{
  {json.dumps(settings.realm)}: {{
    users: [
{users}
    ]
  }}
}}
"""


def _user(settings: ServerSettings, host: str) -> str:
    """Return the user of *host* with its permissions."""
    who = f"nkey: {settings.nkeys[host]}" if settings.nkeys else f"user: {json.dumps(host)}"
    publish, subscribe = (json.dumps(list(each)) for each in (published_by(settings.realm, host), received_by(settings.realm, host)))
    return f"      {{ {who}, permissions: {{\n        publish: {{ allow: {publish} }}\n        subscribe: {{ allow: {subscribe} }} }} }}"
