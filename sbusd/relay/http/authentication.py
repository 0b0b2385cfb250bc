"""Authentication of remote hosts, by one of three methods that the configuration selects. Spec: sbus-relay(8), "Authentication"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sbusd.config.relay import RelaySettings
from sbusd.relay.http.credentials import (
    FROM,
    SIGNATURE,
    TIME,
    SignatureHeaders,
    is_same,
    read_key,
    read_signature_headers,
    request_signature,
    response_signature,
    twin_of,
)
from sbusd.relay.log_messages import AUTHENTICATION_FAILED, REPLAYED
from sbusd.relay.redis.store import Nonce
from sbusd.socket_owner import is_trusted
from sbusd.systemd.log_records import LogMessage


class RejectedRequestError(Exception):
    """A rejected HTTP request: status and text of the response, event for the log, and counter."""

    def __init__(self, status: int, words: str, event: LogMessage, counted: str) -> None:
        """*counted* is the name of the counter."""
        super().__init__(words)
        self.status = status
        self.words = words
        self.event = event
        self.counted = counted


@dataclass(frozen=True, slots=True)
class UnverifiedRequest:
    """A request and what is known about its sender before authentication."""

    path: str
    headers: Mapping[str, str]
    client: tuple[str, int]
    certificate: Mapping[str, Any] | None
    user: int | None = None
    """The local user that connected. None if remote hosts are authenticated, or the kernel reports no user."""
    body: bytes = b""
    """Empty until it has been read."""


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """The authenticated sender of a message."""

    twin: int | None = None
    """None: the message itself decides."""
    nonce: Nonce | None = None
    """The store accepts a message with it once. Duty: reject it with :func:`replayed` if the store does."""
    signed: SignatureHeaders | None = None
    """The verified signature of the request, for which the response is signed."""


class Authentication(Protocol):
    """One method to identify a sender."""

    trust: str
    """The method, for the log."""

    def precheck(self, request: UnverifiedRequest) -> None:
        """Reject an obviously invalid sender before the body is read, which costs memory and time. Raises RejectedRequestError."""

    def identify(self, request: UnverifiedRequest) -> SenderIdentity:
        """Return the sender. Raises RejectedRequestError."""


class LocalUserAuthentication:
    """Without keys and certificates: only root and the relay's own user on this host are accepted."""

    trust = "unauthenticated"

    def precheck(self, request: UnverifiedRequest) -> None:
        """Reject other users of this host."""
        if not is_trusted(request.user):
            who = "the kernel reports no user for this connection" if request.user is None else f"this connection is of user {request.user}"
            words = f"without keys or certificates only root and the relay's own user are accepted; {who}"
            raise RejectedRequestError(403, words, AUTHENTICATION_FAILED, "peers-refused")

    def identify(self, request: UnverifiedRequest) -> SenderIdentity:
        """Return an identity that leaves the host number to the message."""
        self.precheck(request)
        return SenderIdentity()


class CertificateAuthentication:
    """The certificate names the host; the TLS handshake has rejected certificates of other authorities."""

    trust = "authenticated by certificates"

    def precheck(self, request: UnverifiedRequest) -> None:
        """Reject a certificate that does not name exactly one host."""
        self._twin(request)

    def identify(self, request: UnverifiedRequest) -> SenderIdentity:
        """Return the host that the certificate names."""
        return SenderIdentity(self._twin(request))

    def _twin(self, request: UnverifiedRequest) -> int:
        """Return the host that the certificate names."""
        twin = twin_of(request.certificate or {})
        if twin is None:
            raise RejectedRequestError(
                403, "the certificate must name exactly one host, as DNS:twin-NUMBER", AUTHENTICATION_FAILED, "peers-refused"
            )
        return twin


class KeyAuthentication:
    """A signature with a key that two hosts share."""

    trust = "authenticated by shared keys"

    def __init__(self, twin: int, keys: Mapping[int, bytes], skew: float, clock: Callable[[], float] = time.time) -> None:
        """*twin* is the number of this host; *skew* is the largest accepted clock difference in seconds."""
        self._twin = twin
        self._keys = keys
        self._skew = skew
        self._clock = clock

    def precheck(self, request: UnverifiedRequest) -> None:
        """Reject requests without a signature, and of hosts without a key."""
        signed = read_signature_headers(request.headers)
        if signed is None:
            raise RejectedRequestError(
                401,
                "the message is not signed: it needs valid Sbus-Twin, Sbus-Time, Sbus-Nonce and Sbus-Signature headers",
                AUTHENTICATION_FAILED,
                "peers-refused",
            )
        if signed.twin not in self._keys:
            raise RejectedRequestError(
                401, f"no key for host {signed.twin}: set its key_file under [[peers]]", AUTHENTICATION_FAILED, "peers-refused"
            )

    def identify(self, request: UnverifiedRequest) -> SenderIdentity:
        """Return the host whose signature is valid and recent; the store checks that it was not used before."""
        signed = read_signature_headers(request.headers)
        if signed is None or signed.twin not in self._keys:
            raise RejectedRequestError(401, "the message is not signed", AUTHENTICATION_FAILED, "peers-refused")
        right = request_signature(self._keys[signed.twin], signed, self._twin, request.path, request.body)
        if not is_same(right, signed.signature):
            words = f"the signature is not that of host {signed.twin} for host {self._twin}"
            raise RejectedRequestError(401, words, AUTHENTICATION_FAILED, "peers-refused")
        away = signed.time - self._clock()
        if abs(away) > self._skew + 1:  # one second more, because times are rounded down
            words = f"the clock of host {signed.twin} differs by {away:+.0f} s; the limit is {self._skew:g} s: synchronize the clocks"
            raise RejectedRequestError(401, words, REPLAYED, "peers-replayed")
        return SenderIdentity(signed.twin, Nonce(signed.twin, signed.nonce, 2 * self._skew + 4), signed)


def replayed() -> RejectedRequestError:
    """Return the rejection of a message whose nonce the store has seen before."""
    return RejectedRequestError(401, "the message was sent before with the same nonce", REPLAYED, "peers-replayed")


def response_headers(twin: int, keys: Mapping[int, bytes], sender: SenderIdentity | None, status: int, body: bytes) -> dict[str, str]:
    """Return the signature of *twin*'s response to *sender*; empty if the signature of the request was not valid.

    Other requests get no signed response: an attacker who holds a request back could otherwise have a rejection signed for it and send that
    to the sender.
    """
    if sender is None or sender.signed is None:
        return {}
    return {FROM: str(twin), SIGNATURE: response_signature(keys[sender.signed.twin], sender.signed, status, body)}


def sent_at(request: UnverifiedRequest) -> float | None:
    """Return the sending time by the sender's clock in whole seconds; None if the message does not contain it."""
    text = request.headers.get(TIME, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def read_keys(settings: RelaySettings) -> dict[int, bytes]:
    """Return the configured keys by host. Raises ConfigError."""
    return {peer.twin: read_key(Path(peer.key_file)) for peer in settings.peers if peer.key_file}


def make_authentication(settings: RelaySettings, twin: int, keys: Mapping[int, bytes]) -> Authentication:
    """Return the method that *settings* select."""
    if settings.tls.is_on:
        return CertificateAuthentication()
    if keys:
        return KeyAuthentication(twin, keys, settings.clock_skew)
    return LocalUserAuthentication()
