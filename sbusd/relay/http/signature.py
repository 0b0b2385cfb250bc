"""Signatures with a key that two hosts share: HMAC-SHA256, RFC 2104. Spec: sbus-relay(8), "Shared keys".

A signature covers both hosts, the path, the time, a nonce and the body. So a message cannot be redirected, reflected, changed or
replayed. The signature of a response covers that of its request. So an attacker cannot claim in the name of an unreachable host that it
has accepted or rejected a message.
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
"""The HTTP headers."""

SERVICE_USER = "sbus-relay"
"""User of the service, sysusers.d/sbus-relay.conf."""

MIN_KEY_BYTES = 16
"""Shorter keys can be guessed."""
MAX_KEY_BYTES = 1_024
"""A longer file is not a key."""

_HEAD = b"sbus-relay-2"
_OLD_HEAD = b"sbus-relay-1"
"""Of relays whose response signatures do not cover the request. Their requests are rejected."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class SignatureHeaders:
    """The signature headers of a request; not trusted until the signature is verified."""

    twin: int
    time: int
    nonce: str
    signature: str


def read_key(file: Path) -> bytes:
    """Return the key in *file* without surrounding white space.

    Raises:
        ConfigError: the file cannot be read, is accessible to others, or has the wrong size.
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
    """Raise ConfigError if users other than root and the relay's own can access *file*, which has *status*.

    Root's group may read it: systemd creates credentials so. The relay's group may not: its members are users who call remote hosts.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in _owners():
        raise ConfigError(file, "", f"owned by user {status.st_uid}; make the relay's user its owner: chown sbus-relay")
    if mode & 0o027 or (mode & 0o050 and status.st_gid != 0):
        words = f"accessible to other users: mode {mode:04o}, group {status.st_gid}; allow only its owner: chmod 0600"
        raise ConfigError(file, "", words)


def _owners() -> set[int]:
    """Return the users that may own a key: root and the own user. Root also accepts the service user, to check its configuration."""
    owners = {0, os.geteuid()}
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            owners.add(pwd.getpwnam(SERVICE_USER).pw_uid)
    return owners


def signed_headers(key: bytes, twin: int, to: int, path: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the headers of a request from *twin* to the host *to*, with a new nonce."""
    signed = SignatureHeaders(twin, int(now), secrets.token_hex(16), "")
    return {FROM: str(twin), TIME: str(signed.time), NONCE: signed.nonce, SIGNATURE: request_signature(key, signed, to, path, body)}


def read_signature_headers(headers: Mapping[str, str]) -> SignatureHeaders | None:
    """Parse *headers*; return None if they are incomplete or malformed."""
    twin, time, nonce, signature = (headers.get(name, "") for name in (FROM, TIME, NONCE, SIGNATURE))
    if not (_NUMBER.fullmatch(twin) and _NUMBER.fullmatch(time) and _NONCE.fullmatch(nonce) and _SIGNATURE.fullmatch(signature)):
        return None
    return SignatureHeaders(int(twin), int(time), nonce, signature)


def request_signature(key: bytes, signed: SignatureHeaders, to: int, path: str, body: bytes) -> str:
    """Return the signature of a request in hexadecimal."""
    return _hmac(key, _HEAD, *_request_parts(signed, to, path, body))


def is_of_old_version(key: bytes, signed: SignatureHeaders, to: int, path: str, body: bytes) -> bool:
    """Return whether an older relay signed the request."""
    return is_same(_hmac(key, _OLD_HEAD, *_request_parts(signed, to, path, body)), signed.signature)


def _request_parts(signed: SignatureHeaders, to: int, path: str, body: bytes) -> tuple[str | bytes, ...]:
    """Return the signed parts of a request."""
    return (b"POST", path.encode(), str(signed.twin), str(to), str(signed.time), signed.nonce, hashlib.sha256(body).hexdigest())


def response_signature(key: bytes, request: SignatureHeaders, status: int, body: bytes) -> str:
    """Return the signature of the response to *request*."""
    return _hmac(key, _HEAD, "response", request.nonce, request.signature, str(status), hashlib.sha256(body).hexdigest())


def is_same(signature: str, other: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(signature.encode(), other.encode())


def _hmac(key: bytes, *parts: str | bytes) -> str:
    """Return the HMAC of *parts*, which contain no line feed."""
    lines = b"\n".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hmac.new(key, lines, hashlib.sha256).hexdigest()
