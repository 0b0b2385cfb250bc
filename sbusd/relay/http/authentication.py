"""Which twin speaks: three ways to know, one of which holds for a relay, by its configuration. Spec: sbus-relay(8), "Authentication"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sbusd.config.relay import RelaySettings
from sbusd.relay.http.certificates import twin_of
from sbusd.relay.http.signature import (
    FROM,
    SIGNATURE,
    TIME,
    Stamp,
    is_of_old_version,
    is_same,
    read_key,
    read_stamp,
    request_signature,
    response_signature,
)
from sbusd.relay.http.socket_owner import is_trusted
from sbusd.relay.log_messages import REPLAYED, STRANGER
from sbusd.relay.redis.store import Once
from sbusd.systemd.log_record import LogMessage


class RefusedError(Exception):
    """A request of HTTP that is refused: with which status, in which words, and as what it is told."""

    def __init__(self, status: int, words: str, event: LogMessage, counted: str) -> None:
        """*counted* is the counter."""
        super().__init__(words)
        self.status = status
        self.words = words
        self.event = event
        self.counted = counted


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of who sent a request, and what was sent."""

    path: str
    headers: Mapping[str, str]
    client: tuple[str, int]
    certificate: Mapping[str, Any] | None
    user: int | None = None
    """The user of this host who has connected, where other hosts are not authenticated and the kernel reports one."""
    body: bytes = b""
    """What was sent; empty until it has been read."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who sent a message."""

    twin: int | None = None
    """None: whoever the message says."""
    once: Once | None = None
    """What it was signed with: the store takes a message with it once. Duty: refuse it by :func:`replayed` if the store does."""
    stamp: Stamp | None = None
    """The signature of the request, which was right; the response is signed for it."""


class Gate(Protocol):
    """One way to know which twin speaks."""

    trust: str
    """What it rests on, in words."""

    def precheck(self, caller: Caller) -> None:
        """Refuse who cannot be anybody, before a body is read: that costs memory and time. Raises RefusedError."""

    def identify(self, caller: Caller) -> Speaker:
        """Return who speaks. Raises RefusedError."""


class LoopbackGate:
    """Nobody has to show who he is: only this host's root and the relay's own user are listened to."""

    trust = "unauthenticated"

    def precheck(self, caller: Caller) -> None:
        """Refuse other users of this host."""
        if not is_trusted(caller.user):
            who = "the kernel reports no user for this connection" if caller.user is None else f"this connection is of user {caller.user}"
            words = f"without keys or certificates only root and the relay's own user are accepted; {who}"
            raise RefusedError(403, words, STRANGER, "peers-refused")

    def identify(self, caller: Caller) -> Speaker:
        """Believe what the message says, of those who are listened to."""
        self.precheck(caller)
        return Speaker()


class CertificateGate:
    """The certificate says which twin it is; the handshake of TLS has refused those of others."""

    trust = "authenticated by certificates"

    def precheck(self, caller: Caller) -> None:
        """Refuse a certificate that names no twin."""
        self._twin(caller)

    def identify(self, caller: Caller) -> Speaker:
        """Return the twin that the certificate names."""
        return Speaker(self._twin(caller))

    def _twin(self, caller: Caller) -> int:
        """Return the twin that the certificate names."""
        twin = twin_of(caller.certificate or {})
        if twin is None:
            raise RefusedError(403, "the certificate must name exactly one host, as DNS:twin-NUMBER", STRANGER, "peers-refused")
        return twin


class KeyGate:
    """A signature with a key that two twins share."""

    trust = "authenticated by shared keys"

    def __init__(self, twin: int, keys: Mapping[int, bytes], skew: float, clock: Callable[[], float] = time.time) -> None:
        """*twin* is this one; *skew* bounds how wrong clocks may be, in seconds."""
        self._twin = twin
        self._keys = keys
        self._skew = skew
        self._clock = clock

    def precheck(self, caller: Caller) -> None:
        """Refuse who has no key, or no signature."""
        stamp = read_stamp(caller.headers)
        if stamp is None:
            raise RefusedError(
                401,
                "the message is not signed: it needs valid Sbus-Twin, Sbus-Time, Sbus-Nonce and Sbus-Signature headers",
                STRANGER,
                "peers-refused",
            )
        if stamp.twin not in self._keys:
            raise RefusedError(401, f"no key for host {stamp.twin}: set its key_file under [[peers]]", STRANGER, "peers-refused")

    def identify(self, caller: Caller) -> Speaker:
        """Return the twin that signed, if it did just now; whether for the first time, the store knows."""
        stamp = read_stamp(caller.headers)
        if stamp is None or stamp.twin not in self._keys:
            raise RefusedError(401, "the message is not signed", STRANGER, "peers-refused")
        right = request_signature(self._keys[stamp.twin], stamp, self._twin, caller.path, caller.body)
        if not is_same(right, stamp.signature):
            words = f"the signature is not that of host {stamp.twin} for host {self._twin}"
            if is_of_old_version(self._keys[stamp.twin], stamp, self._twin, caller.path, caller.body):
                words = f"host {stamp.twin} signs as an older relay does: upgrade it"
            raise RefusedError(401, words, STRANGER, "peers-refused")
        away = stamp.time - self._clock()
        if abs(away) > self._skew + 1:  # a second more: times are cut to whole ones
            words = f"the clock of host {stamp.twin} differs by {away:+.0f} s; the limit is {self._skew:g} s: synchronize the clocks"
            raise RefusedError(401, words, REPLAYED, "peers-replayed")
        return Speaker(stamp.twin, Once(stamp.twin, stamp.nonce, 2 * self._skew + 4), stamp)


def replayed() -> RefusedError:
    """Return the refusal of a message that the store knows by what it was signed with."""
    return RefusedError(401, "the message was sent before with the same nonce", REPLAYED, "peers-replayed")


def response_headers(twin: int, keys: Mapping[int, bytes], speaker: Speaker | None, status: int, body: bytes) -> dict[str, str]:
    """Return the signature of *twin*'s response to *speaker*, nothing if the signature of the request was not right.

    No other caller gets one: an attacker who holds a request back could have a refusal signed for it, and return that to its sender.
    """
    if speaker is None or speaker.stamp is None:
        return {}
    return {FROM: str(twin), SIGNATURE: response_signature(keys[speaker.stamp.twin], speaker.stamp, status, body)}


def sent_at(caller: Caller) -> float | None:
    """Return when a message was sent by its sender's own clock, in whole seconds; None if it does not say."""
    text = caller.headers.get(TIME, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def read_keys(settings: RelaySettings) -> dict[int, bytes]:
    """Return the keys of the configuration by their twins. Raises ConfigError."""
    return {peer.twin: read_key(Path(peer.key_file)) for peer in settings.peers if peer.key_file}


def make_gate(settings: RelaySettings, twin: int, keys: Mapping[int, bytes]) -> Gate:
    """Return the way that *settings* say."""
    if settings.tls.is_on:
        return CertificateGate()
    if keys:
        return KeyGate(twin, keys, settings.clock_skew)
    return LoopbackGate()
