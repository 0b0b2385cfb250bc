"""Credentials of hosts: a key that two hosts share, with which they sign, or a certificate. Spec: sbus-relay(8), "Authentication".

Signatures are HMAC-SHA256, RFC 2104. A signature covers both hosts, the path, the time, a nonce and the body. So a message cannot be
redirected, reflected, changed or replayed. The signature of a response covers that of its request. So an attacker cannot claim in the name
of an unreachable host that it has accepted or rejected a message. Certificates are for mutual TLS, RFC 8446: that of host 1002 names
``DNS:twin-1002``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbus.protocol.envelope import MAX_TWIN
from sbus_programs.config import certificates
from sbus_programs.config.certificates import Identity
from sbus_programs.config.files import ConfigError, NotRegularError, open_regular
from sbus_programs.config.hosts import TlsSettings

FROM, TIME, NONCE, SIGNATURE = "Sbus-Twin", "Sbus-Time", "Sbus-Nonce", "Sbus-Signature"
"""The HTTP headers."""

SERVICE_USER = "sbus-relay"
"""User of the service, sysusers.d/sbus-relay.conf."""

MIN_KEY_BYTES = 16
"""Shorter keys can be guessed."""
MAX_KEY_BYTES = 1_024
"""A longer file is not a key."""

_HEAD = b"sbus-relay-2"
_NONCE = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,12}")

_TWIN_NAME = re.compile(r"twin-([1-9][0-9]{0,9})")


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
            certificates.check_private(file, os.fstat(stream.fileno()), SERVICE_USER)
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


def twin_name(twin: int) -> str:
    """Return the DNS name in the certificate of *twin*."""
    return f"twin-{twin}"


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of the server: clients need a certificate of the authority. Raises ConfigError."""
    return certificates.server_context(_files(settings), SERVICE_USER)


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of the client: servers need a certificate of the authority with their name. Raises ConfigError."""
    return certificates.client_context(_files(settings), SERVICE_USER)


def check_identity(settings: TlsSettings, twin: int, *, is_start: bool) -> None:
    """Raise ConfigError if the other hosts would reject the certificate of *twin*, see :meth:`Identity.check`."""
    Identity(_files(settings), twin_name(twin), SERVICE_USER).check(is_start=is_start)


def twin_of(certificate: Mapping[str, Any]) -> int | None:
    """Return the host that a certificate names, in the form of ssl.SSLSocket.getpeercert(); None unless it names exactly one."""
    names = [_TWIN_NAME.fullmatch(name) for name in certificates.dns_names(certificate)]
    twins = {int(name[1]) for name in names if name}
    return twins.pop() if len(twins) == 1 and max(twins) <= MAX_TWIN else None


def _files(settings: TlsSettings) -> certificates.CertificateFiles:
    """Return the files that *settings* name."""
    return certificates.CertificateFiles(Path(settings.certificate), Path(settings.key), Path(settings.authority))
