"""The format of requests and responses, on the bus and between hosts: the JSON of the Reliable Message Bus. Spec: sbus-rpc(7) §2.

Parsing is total: any bytes result in an :class:`Envelope` or a :class:`ProtocolError`. The bus, its clients and the recorder use this
parser. It needs only the standard library.

The caller checks a trace context before it sends it. A receiver ignores an invalid one, and does not discard the request.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import ADDRESS_HEAD, MAX_KEY_BYTES

MAX_CONTEXT_BYTES = 256
"""Maximum size of a trace context. Version 00 has 55 bytes; later versions may add fields at the end."""

_CONTEXT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def context_problem(text: str) -> str:
    """Return why *text* is not a trace context, or no words."""
    found = _CONTEXT.fullmatch(text)
    if found is None or (found[1] == "00" and found[2]):
        return "is not a W3C traceparent such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    return f"is longer than {MAX_CONTEXT_BYTES} bytes" if len(text) > MAX_CONTEXT_BYTES else ""


def read_context(value: object) -> str:
    """Return the member ``ctx`` if it is a trace context, otherwise empty text."""
    return value if isinstance(value, str) and value and not context_problem(value) else ""


VERSION = 1
"""The only version, ``ver``."""

SERVICE_HEAD = b"rpc/"
"""The prefix of keys of services: ``rpc/<cmd>``, and for calls to one of them ``!/conn/<id>/rpc/<cmd>``."""

RELAY_HEAD = b"relay/"
"""The prefix of keys of calls to remote hosts: ``relay/<twin>/<cmd>``."""

RELAYED_HEAD = b"relayed/"
"""The prefix of keys of calls from remote hosts: ``relayed/<cmd>``. Rules permit only the relay to publish to them."""

START_HEAD = "trigger/start/"
"""The beginning of the commands by which sbus-trigger(8) starts services of others."""

TEXT_LIMITS: Mapping[str, int] = {
    "uid": 128,  # longer than a UUID, a number after that of a host, or a hash in hexadecimal
    "cmd": 256,  # it is a part of a key, and people read it
    "ret": MAX_KEY_BYTES,  # it is a key, or on other hosts the name of a queue
    "shm": 256,  # not used; room for a name
    "err": 4_096,  # a message for people, not a core dump
}
"""The longest text of each member, in bytes of UTF-8."""

MAX_TWIN = 0xFFFF_FFFF
"""The greatest number of a host: 32 bits."""

NUMBER_LIMITS: Mapping[str, int] = {
    "exp": 31_536_000,  # a year in seconds: longer than any host stays up, and safe in any clock's arithmetic
    "try": 1_000,  # attempts are seconds apart, and a day of them is enough
    "src": MAX_TWIN,
    "now": 1 << 53,  # seconds since 1970, exact in every JSON parser
    "cancel": 1,
    "seq": 1 << 53,  # a stream of any length
    "more": 1,
    "win": 1 << 53,
}
"""The largest number of each member; the smallest is 0."""

MAX_DESTINATIONS = 256
"""Maximum number of ``dst``: each is a separate request to a remote host."""

_MEMBERS = frozenset(TEXT_LIMITS) | frozenset(NUMBER_LIMITS) | {"ver", "dat", "dst", "ctx"}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request or a response. The docstring of each member begins with its name on the wire."""

    command: str
    """``cmd``: the command."""
    uid: str
    """``uid``: the caller's name for this request; its response has the same."""
    data: bytes = b""
    """``dat``, in base64: the argument, or the result."""
    reply_to: str = ""
    """``ret``: the key for the response; empty if none is wanted."""
    expires_seconds: int = 0
    """``exp``: seconds after ``sent_at`` when the request expires; 0 means never."""
    sent_at: int = 0
    """``now``: seconds since 1970; 0 means unknown."""
    error: str = ""
    """``err``: why there is no result; empty in a request, and in a response with a result."""
    source: int = 0
    """``src``: the host that sent it; 0 is this host."""
    destinations: tuple[int, ...] = ()
    """``dst``: the hosts that it is for; empty means this host."""
    tries: int = 0
    """``try``: the maximum number of retries for a remote host."""
    schema: str = ""
    """``shm``: not used."""
    context: str = ""
    """``ctx``: the trace context of a request, a W3C traceparent; empty if there is none. An invalid one is ignored."""
    cancel: int = 0
    """``cancel``: 1 if this is not a request, but withdraws the request with the same ``uid``."""
    part: int = 0
    """``seq``: the number of this part of the response, or of the end after the last part; 0 if it is the whole response."""
    more: int = 0
    """``more``: 1 if parts of the response follow. In a message to a service, 1 if it only grants parts of the request with the ``uid``."""
    window: int = 0
    """``win``: the number of the last part that the caller accepts; 0 if it does not accept parts."""

    def encode(self) -> bytes:
        """Return it as JSON in one line, in the order of the founding document; later members follow, unless they have their default."""
        members: dict[str, object] = {
            "ver": VERSION,
            "uid": self.uid,
            "cmd": self.command,
            "exp": self.expires_seconds,
            "try": self.tries,
            "dat": base64.b64encode(self.data).decode("ascii"),
            "src": self.source,
            "dst": list(self.destinations),
            "ret": self.reply_to,
            "shm": self.schema,
            "now": self.sent_at,
            "err": self.error,
        }
        if self.cancel:
            members["cancel"] = self.cancel
        if self.part or self.window or self.more:
            members |= {name: number for name, number in (("seq", self.part), ("more", self.more), ("win", self.window)) if number}
        if self.context:
            members["ctx"] = self.context
        return json.dumps(members, separators=(",", ":")).encode("ascii")

    def is_expired(self, now: float) -> bool:
        """Return whether the request has expired at *now*, seconds since 1970.

        Both times are truncated to whole seconds, so a request has up to a second more than it says, and never less.
        """
        return self.expires_seconds > 0 and self.sent_at > 0 and now >= self.sent_at + self.expires_seconds + 1


def parse_envelope(payload: bytes) -> Envelope:
    """Return the envelope in *payload*. Unknown members are ignored; ``ver``, ``uid`` and ``cmd`` are required.

    Raises:
        ProtocolError: EINVAL, with the name of the invalid member.
    """
    members, data = parse_members(payload)
    get = members.get
    return Envelope(
        command=members["cmd"],
        uid=members["uid"],
        data=data,
        reply_to=get("ret", ""),
        expires_seconds=get("exp", 0),
        sent_at=get("now", 0),
        error=get("err", ""),
        source=get("src", 0),
        destinations=tuple(get("dst", ())),
        tries=get("try", 0),
        schema=get("shm", ""),
        context=read_context(get("ctx")),
        cancel=get("cancel", 0),
        part=get("seq", 0),
        more=get("more", 0),
        window=get("win", 0),
    )


def parse_members(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the members of the envelope in *payload* by their names on the wire, and its data; members can be missing, but not invalid.

    For programs that need a few members of very many envelopes, such as the recorder. Raises what :func:`parse_envelope` raises.
    """
    members = _load(payload)
    version = members.get("ver")
    if type(version) is not int or version != VERSION:
        raise _wrong("ver", f"must be {VERSION}")
    for name, most in NUMBER_LIMITS.items():
        if name in members:
            _check_number(name, members[name], most)
    for name in TEXT_LIMITS:
        if name in members:
            _check_text(name, members[name])
    for name in ("uid", "cmd"):
        if not members.get(name):
            raise _wrong(name, "is missing or empty")
    if problem := command_problem(members["cmd"]):
        raise _wrong("cmd", problem)
    data = decode_data(members.get("dat", ""))
    if "dst" in members:
        _check_destinations(members["dst"])
    return members, data


def load_object(payload: bytes) -> dict[str, object]:
    """Return the JSON object in *payload*, with only the members of an envelope.

    Raises:
        ProtocolError: EINVAL if it is not a JSON object in UTF-8.
    """
    return {name: member for name, member in _load(payload).items() if name in _MEMBERS}


def _load(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in *payload*, with all its members. Raises what :func:`load_object` raises."""
    try:
        value = json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(ErrorCode.EINVAL, "invalid envelope: not JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError(ErrorCode.EINVAL, "invalid envelope: not a JSON object")
    return value


def command_problem(command: str) -> str:
    """Return why *command* cannot be the name of a command, or no words. The name is part of a key, and people read it."""
    if not command:
        return "is empty"
    if not command.isprintable():
        return "contains an unprintable character"
    if "*" in command:
        return "contains *, which is a wildcard in patterns"
    if len(command.encode("utf-8", "surrogatepass")) > TEXT_LIMITS["cmd"]:
        return f"is longer than {TEXT_LIMITS['cmd']} bytes"
    return ""


def service_key(command: str) -> bytes:
    """Return ``rpc/<cmd>``."""
    return SERVICE_HEAD + command.encode()


def relay_key(twin: int, command: str) -> bytes:
    """Return ``relay/<twin>/<cmd>``."""
    return b"%b%d/%b" % (RELAY_HEAD, twin, command.encode())


def relayed_key(command: str) -> bytes:
    """Return ``relayed/<cmd>``."""
    return RELAYED_HEAD + command.encode()


def start_command(command: str) -> str:
    """Return the command by which sbus-trigger(8) starts a service of *command*."""
    return START_HEAD + command


def command_of(key: bytes) -> str | None:
    """Return the command that a request with *key* must name; None if it is not a key of services.

    The keys of services are ``rpc/<cmd>``, ``relayed/<cmd>``, and the same after their address, ``!/conn/<id>/``.
    """
    key = _after_address(key)
    head = next((head for head in (SERVICE_HEAD, RELAYED_HEAD) if key.startswith(head)), None)
    return None if head is None else _text_of(key[len(head) :])


def is_relayed(key: bytes) -> bool:
    """Return whether a request with *key* is a call of a remote host, provided that a relay sent it."""
    return _after_address(key).startswith(RELAYED_HEAD)


def destination_of(key: bytes) -> tuple[int, str] | None:
    """Return the host and the command in ``relay/<twin>/<cmd>``; None for other keys, including those after an address."""
    if not key.startswith(RELAY_HEAD):
        return None
    digits, slash, rest = key[len(RELAY_HEAD) :].partition(b"/")
    command = _text_of(rest)
    if not slash or not digits.isdigit() or len(digits) > 10 or int(digits) > MAX_TWIN or command is None:
        return None
    return int(digits), command


def call_digest(caller: int, return_key: bytes, uid: str) -> str:
    """Return a digest that is equal for a request and its responses on one bus, and different for other calls: 128 bits in hexadecimal.

    *caller* is the connection number of the caller. The digest does not reveal the key and the uid.
    """
    text = b"%d\0%d\0%b%b" % (caller, len(return_key), return_key, uid.encode())
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which only programs that record need

    return hashlib.blake2b(text, digest_size=16).hexdigest()


def decode_data(text: object) -> bytes:
    """Return the bytes in ``dat``. Raises ProtocolError (EINVAL) if it is not base64."""
    if not isinstance(text, str):
        raise _wrong("dat", "must be text")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _wrong("dat", "is not base64") from error


def text_problem(name: str, text: str) -> str:
    """Return why *text* is invalid for the member *name*, or no words."""
    if text.isascii() and text.isprintable() and len(text) <= TEXT_LIMITS[name]:
        return ""  # as nearly all are
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "contains an unpaired surrogate"
    if size > TEXT_LIMITS[name]:
        return f"is longer than {TEXT_LIMITS[name]} bytes"
    if name in ("uid", "ret") and not text.isprintable():
        return "contains an unprintable character"
    return ""


def _after_address(key: bytes) -> bytes:
    """Return *key* without the ``!/conn/<id>/`` at its beginning, if any."""
    return key[len(ADDRESS_HEAD) :].partition(b"/")[2] if key.startswith(ADDRESS_HEAD) else key


def _text_of(part: bytes) -> str | None:
    """Return a part of a key as text, None if it is not UTF-8."""
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _check_text(name: str, text: object) -> None:
    """Raise ProtocolError unless *text* is valid for the member *name*."""
    if not isinstance(text, str):
        raise _wrong(name, "must be text")
    if problem := text_problem(name, text):
        raise _wrong(name, problem)


def _check_number(name: str, number: object, most: int) -> None:
    """Raise ProtocolError unless *number*, the member *name*, is an integer from 0 to *most*."""
    if type(number) is not int or not 0 <= number <= most:
        raise _wrong(name, f"must be an integer from 0 to {most}")


def _check_destinations(value: object) -> None:
    """Raise ProtocolError unless *value* is a list of hosts."""
    if not isinstance(value, list) or len(value) > MAX_DESTINATIONS:
        raise _wrong("dst", f"must be a list of at most {MAX_DESTINATIONS} numbers")
    for each in value:
        if type(each) is not int or not 0 <= each <= MAX_TWIN:
            raise _wrong("dst", f"must contain only integers from 0 to {MAX_TWIN}")


def _wrong(name: str, problem: str) -> ProtocolError:
    """Return the error for the member *name*."""
    return ProtocolError(ErrorCode.EINVAL, f"invalid envelope: {name} {problem}")
