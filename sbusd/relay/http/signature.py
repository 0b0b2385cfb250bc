"""Who sent a message and who took it, by a key that two twins share: HMAC-SHA256, RFC 2104. Spec: sbus-relay(8), "Shared keys".

What is signed names both twins, the path, the time, a nonce and the body, so that a message cannot be sent to another twin, turned
back on its sender, changed, or sent again. The response is signed too, for the signature of its request: who cuts a host off cannot
say in its name that a message has arrived, or is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pwd
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sbusd.config.content import NotRegularError, open_regular
from sbusd.config.files import ConfigError

FROM, TIME, NONCE, SIGNATURE = "Sbus-Twin", "Sbus-Time", "Sbus-Nonce", "Sbus-Signature"
"""The headers of HTTP."""

SERVICE_USER = "sbus-relay"
"""Who runs the service, sysusers.d/sbus-relay.conf."""

MIN_KEY_BYTES = 16
"""Shorter keys can be guessed."""
MAX_KEY_BYTES = 1_024
"""Longer ones are no keys, but a wrong file."""

_HEAD = b"sbus-relay-2"
_OLD_HEAD = b"sbus-relay-1"
"""That of relays whose responses were not signed for the signature of the request; their requests are not taken."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the headers of a request say of its sender; nothing of it is believed before the signature is right."""

    twin: int
    time: int
    nonce: str
    signature: str


def read_key(file: Path) -> bytes:
    """Return the key in *file*, without white space around it.

    Raises:
        ConfigError: it cannot be read, others can read it too, or it is too short or too long.
    """
    try:
        with open_regular(file) as stream:
            check_private(file, os.fstat(stream.fileno()))
            content = stream.read(MAX_KEY_BYTES + 1)
    except NotRegularError:
        raise ConfigError(file, "", "not a regular file; store the key in one") from None
    except OSError as error:
        raise ConfigError(file, "", f"cannot read the key: {error.strerror}; make it readable for the relay's user") from None
    key = content.strip()
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ConfigError(
            file, "", f"the key has {len(key)} bytes, but must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES}; make one with: openssl rand -hex 32"
        )
    return key


def check_private(file: Path, status: os.stat_result) -> None:
    """Raise ConfigError if another user than root and the relay's own can use *file*, whose status is *status*.

    Root's group may read it, as systemd makes credentials. No other group may: users are added to that of the relay to call other hosts.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in _owners():
        raise ConfigError(file, "", f"owned by user {status.st_uid}; make the relay's user its owner: chown sbus-relay")
    if mode & 0o027 or (mode & 0o050 and status.st_gid != 0):
        words = f"accessible to other users: mode {mode:04o}, group {status.st_gid}; allow only its owner: chmod 0600"
        raise ConfigError(file, "", words)


def _owners() -> set[int]:
    """Return who may own a key: root and the own user; for root, who checks the configuration of the service, that of the service too."""
    owners = {0, os.geteuid()}
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            owners.add(pwd.getpwnam(SERVICE_USER).pw_uid)
    return owners


def signed_headers(key: bytes, twin: int, to: int, path: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the headers of a request of *twin* to the twin *to*, with a nonce of their own."""
    stamp = Stamp(twin, int(now), secrets.token_hex(16), "")
    return {FROM: str(twin), TIME: str(stamp.time), NONCE: stamp.nonce, SIGNATURE: request_signature(key, stamp, to, path, body)}


def read_stamp(headers: Mapping[str, str]) -> Stamp | None:
    """Return what *headers* say, None if that is not all there or malformed."""
    twin, time, nonce, signature = (headers.get(name, "") for name in (FROM, TIME, NONCE, SIGNATURE))
    if not (_NUMBER.fullmatch(twin) and _NUMBER.fullmatch(time) and _NONCE.fullmatch(nonce) and _SIGNATURE.fullmatch(signature)):
        return None
    return Stamp(int(twin), int(time), nonce, signature)


def request_signature(key: bytes, stamp: Stamp, to: int, path: str, body: bytes) -> str:
    """Return the signature of a request, in hexadecimal."""
    return _hmac(key, _HEAD, *_request_parts(stamp, to, path, body))


def is_of_old_version(key: bytes, stamp: Stamp, to: int, path: str, body: bytes) -> bool:
    """Return whether an older relay has signed the request."""
    return is_same(_hmac(key, _OLD_HEAD, *_request_parts(stamp, to, path, body)), stamp.signature)


def _request_parts(stamp: Stamp, to: int, path: str, body: bytes) -> tuple[str | bytes, ...]:
    """Return what the signature of a request is over."""
    return (b"POST", path.encode(), str(stamp.twin), str(to), str(stamp.time), stamp.nonce, hashlib.sha256(body).hexdigest())


def response_signature(key: bytes, request: Stamp, status: int, body: bytes) -> str:
    """Return the signature of the response to *request*."""
    return _hmac(key, _HEAD, "response", request.nonce, request.signature, str(status), hashlib.sha256(body).hexdigest())


def is_same(signature: str, other: str) -> bool:
    """Return whether the two are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(signature.encode(), other.encode())


def _hmac(key: bytes, *parts: str | bytes) -> str:
    """Return the HMAC of *parts*, none of which has a line's end in it."""
    lines = b"\n".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hmac.new(key, lines, hashlib.sha256).hexdigest()
