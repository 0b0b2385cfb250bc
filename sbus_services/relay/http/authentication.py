"""Authentication of remote hosts by the configured method, also after its files were replaced. Spec: sbus-relay(8), "Authentication".

The files are compared every few seconds, and on SIGHUP, in a thread: a file system that hangs must not delay messages. What cannot be used
is reported, and the relay continues with what it has.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sbus.asyncio.look_ups import in_thread
from sbus_programs.config.certificates import validity_of
from sbus_programs.config.files import ConfigError
from sbus_programs.config.relay import RelaySettings
from sbus_programs.socket_owner import is_trusted
from sbus_programs.systemd.log_records import LimitedLog, LogMessage
from sbus_services.relay.http.credentials import (
    FROM,
    SIGNATURE,
    TIME,
    SignatureHeaders,
    check_identity,
    client_context,
    is_same,
    read_key,
    read_signature_headers,
    request_signature,
    response_signature,
    server_context,
    twin_of,
)
from sbus_services.relay.log_messages import AUTHENTICATION_FAILED, CERTIFICATE_ENDS, CREDENTIALS_KEPT, CREDENTIALS_READ, REPLAYED
from sbus_services.relay.redis.store import Nonce


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


CHECK_SECONDS = 5.0
"""Interval of comparisons. A change must be seen in two of them, so that files that belong together are replaced."""

DAY = 86_400.0

WARNING_SECONDS = 14 * DAY
"""A certificate is reported this long before its end, and every day from then on."""

Stamps = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of modification of each file; None for a file that cannot be read."""


class Credentials:
    """The TLS contexts and the keys in use."""

    def __init__(self, settings: RelaySettings, journal: LimitedLog, clock: Callable[[], float] = time.time) -> None:
        """Read the files. *clock* returns seconds since 1970. Raises ConfigError."""
        self._settings = settings
        self._journal = journal
        self._clock = clock
        self._files = [Path(each.key_file) for each in settings.peers if each.key_file]
        if settings.tls.is_on:
            self._files += [Path(name) for name in (settings.tls.certificate, settings.tls.key, settings.tls.authority)]
        self._read_at = self._seen = self._stamps()
        self.keys = read_keys(settings)
        """By host. The object stays the same."""
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        if settings.tls.is_on:
            check_identity(settings.tls, settings.twin, is_start=True)  # at boot, the clock can be wrong
            self.server, self.client = server_context(settings.tls), client_context(settings.tls)
        self._warned_at: float | None = None
        self._is_asked = asyncio.Event()

    def reload(self) -> None:
        """Compare and read the files now."""
        self._is_asked.set()

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while self._files:
            await in_thread(self._warn)
            try:
                async with asyncio.timeout(CHECK_SECONDS):  # wait_for() may swallow a cancellation before Python 3.12
                    await self._is_asked.wait()
            except TimeoutError:
                is_asked = False
            else:
                is_asked = True
                self._is_asked.clear()
            if await in_thread(self._has_changed, is_asked):
                await self._read()

    def _has_changed(self, is_asked: bool) -> bool:
        """Return whether the files must be read: others are there since the last comparison but one, or a reload was asked for."""
        before, self._seen = self._seen, self._stamps()
        return is_asked or (self._seen == before and self._seen != self._read_at)

    async def _read(self) -> None:
        """Read the files, and use them if all are valid."""
        self._read_at = self._seen
        settings = self._settings
        try:
            keys = await in_thread(read_keys, settings)
            if settings.tls.is_on:
                await in_thread(check_identity, settings.tls, settings.twin, is_start=True)
                server = await in_thread(server_context, settings.tls)
                client = await in_thread(client_context, settings.tls)
                self.server, self.client = server, client
        except ConfigError as error:
            self._journal.record(CREDENTIALS_KEPT, reason=str(error))
            return
        self.keys.clear()
        self.keys.update(keys)
        self._warned_at = None
        self._journal.record(CREDENTIALS_READ, files=len(self._files))

    def _warn(self) -> None:
        """Report a certificate that ends soon or has ended, once a day."""
        now = self._clock()
        if not self._settings.tls.is_on or (self._warned_at is not None and 0 <= now - self._warned_at < DAY):
            return
        file = Path(self._settings.tls.certificate)
        if (validity := validity_of(file)) is None:
            return
        begin, end = validity
        # One for a day or a week is renewed later.
        if end - now > min(WARNING_SECONDS, (end - begin) / 4):
            return
        self._warned_at = now
        left = f"ends in {(end - now) / 3600:.1f} h" if end > now else f"ended {(now - end) / 3600:.1f} h ago"
        self._journal.record(CERTIFICATE_ENDS, file=str(file), reason=left)

    def _stamps(self) -> Stamps:
        """Return what tells a replaced file from the one before."""
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a replaced *file* from the one before."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
