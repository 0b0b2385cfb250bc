"""Certificates and private keys for mutual TLS between hosts, RFC 8446, and the checks of both."""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import shlex
import ssl
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbus_programs.config.files import ConfigError

_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of fields of a certificate, RFC 5280."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files: the certificate of this host, its private key, and the certificates of the authorities that sign those of other hosts."""

    certificate: Path
    key: Path
    authority: Path


def server_context(files: CertificateFiles, service_user: str) -> ssl.SSLContext:
    """Return the TLS context of a server: clients need a certificate of the authority. Raises ConfigError.

    *service_user* is the user of the service; that user may own the key.
    """
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, service_user)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: CertificateFiles, service_user: str) -> ssl.SSLContext:
    """Return the TLS context of a client: servers need a certificate of the authority with their name. Raises ConfigError."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files, service_user)
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    return context


def dns_names(certificate: Mapping[str, Any]) -> set[str]:
    """Return the DNS names in a certificate, which has the form of ssl.SSLSocket.getpeercert()."""
    return {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}


def validity_of(file: Path) -> tuple[float, float] | None:
    """Return when the certificate in the PEM *file* begins and ends, in seconds since 1970; None if it cannot be read.

    The standard library reads these dates only of certificates that a peer has presented, so the fields of RFC 5280, 4.1 are skipped here.
    """
    try:
        text = file.read_text("ascii", "replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")])
        fields = _elements(_elements(_elements(der)[0][1])[0][1])
        if fields[0][0] == _VERSION:
            del fields[0]
        _serial, _algorithm, _issuer, (_, validity) = fields[:4]
        begin_time, end_time = (_time_of(*each) for each in _elements(validity))
    except (OSError, ValueError, IndexError):
        return None
    return begin_time, end_time


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element in *der*, X.690. Raises IndexError, ValueError."""
    found = []
    while der:
        tag, length, head = der[0], der[1], 2
        if length & 0x80:
            head += length & 0x7F
            length = int.from_bytes(der[2:head])
        if head + length > len(der):
            raise ValueError("an element is cut")
        found.append((tag, der[head : head + length]))
        der = der[head + length :]
    return found


def _time_of(tag: int, text: bytes) -> float:
    """Return a UTCTime or GeneralizedTime in seconds since 1970. Raises ValueError."""
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def check_private(file: Path, status: os.stat_result, service_user: str) -> None:
    """Raise ConfigError if users other than root, the own user and *service_user* can access *file*, which has *status*.

    Root's group may read it: systemd creates credentials so. The group of the service may not: it can have other members.
    """
    mode = stat.S_IMODE(status.st_mode)
    if not _may_own(status.st_uid, service_user):
        words = f"owned by user {status.st_uid}; make the service's user its owner: chown {service_user} {shlex.quote(str(file))}"
        raise ConfigError(file, "", words)
    if mode & 0o027 or (mode & 0o050 and status.st_gid != 0):
        words = f"accessible to other users: mode {mode:04o}, group {status.st_gid}; allow only its owner:"
        raise ConfigError(file, "", f"{words} chmod 0600 {shlex.quote(str(file))}")


def _may_own(uid: int, service_user: str) -> bool:
    """Return whether the user *uid* may own a key: root or the own user. Root also accepts the service user: it checks configurations."""
    if uid in (0, os.geteuid()):
        return True
    with contextlib.suppress(KeyError):
        return os.geteuid() == 0 and uid == pwd.getpwnam(service_user).pw_uid
    return False


def _load(context: ssl.SSLContext, files: CertificateFiles, service_user: str) -> ssl.SSLContext:
    """Load this host's certificate and the trusted authorities into *context*."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
        status = files.key.stat()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(files.certificate, "", f"cannot load certificate with private key {files.key}: {_words(error)}") from None
    check_private(files.key, status, service_user)
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(files.authority, "", f"cannot load CA certificates: {_words(error)}") from None
    return context


def _words(error: OSError) -> str:
    """Return the text of *error*."""
    return error.strerror or str(error)


_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME of openssl, which the standard library does not name."""

_NOT_NOW = frozenset({9, 10})
"""X509_V_ERR_* of openssl: not yet valid, and expired."""
_FOREIGN = frozenset({2, 7, 18, 19, 20, 21})
"""X509_V_ERR_* of openssl: no authority in the file has signed the certificate."""

_MAX_TURNS = 10
"""A handshake of TLS 1.2 needs four."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the certificate in *files* must prove: the DNS *name*, to hosts that this one connects to, that connect to it, or both.

    *service_user* is the user of the service; that user may own the key.
    """

    files: CertificateFiles
    name: str
    service_user: str
    as_client: bool = True
    as_server: bool = True

    def check(self, *, is_start: bool) -> None:
        """Verify the files. A start, and a renewal, ignore the dates, because the clock can be wrong at boot, and the authority: two hosts
        can trust each other's without trusting their own.

        Raises:
            ConfigError: a file cannot be used, or other hosts would reject the certificate.
        """
        server, client = server_context(self.files, self.service_user), client_context(self.files, self.service_user)
        client.check_hostname = False  # the names are compared below, without wildcards
        if not self.as_client:
            server.verify_mode = ssl.CERT_NONE
        if not self.as_server:
            client.verify_mode = ssl.CERT_NONE
        for side in (server, client) if is_start else ():
            side.verify_flags |= _NO_CHECK_TIME | ssl.VERIFY_X509_PARTIAL_CHAIN
            side.load_verify_locations(self.files.certificate)
        try:
            names = _shake_hands(server, client)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(self.files.certificate, "", self._words(error)) from None
        except ssl.SSLError as error:
            raise ConfigError(self.files.certificate, "", f"cannot be used for TLS: {error.reason or error}") from None
        if self.name not in names:
            named = ", ".join(sorted(names)[:5]) or "no host"
            raise ConfigError(self.files.certificate, "", f"names {named}, not this host; make one for DNS:{self.name}")

    def _words(self, error: ssl.SSLCertVerificationError) -> str:
        """Say what is wrong with the certificate, and what to do."""
        if error.verify_code in _NOT_NOW:
            return _not_now(error.verify_message, validity_of(self.files.certificate))
        if error.verify_code in _FOREIGN:
            return f"not signed by an authority in {self.files.authority}: {error.verify_message}; use a certificate of that authority"
        return f"other hosts would reject it: {error.verify_message}; make another certificate"


def check_dates(file: Path) -> None:
    """Verify that the certificate in *file* is valid now. Its signature is not verified.

    Raises:
        ConfigError: it is not, or its dates cannot be read.
    """
    if (dates := validity_of(file)) is None:
        raise ConfigError(file, "", "cannot read the dates of the certificate; store it in PEM, beginning with BEGIN CERTIFICATE")
    now = time.time()
    if now < dates[0]:
        raise ConfigError(file, "", _not_now("certificate is not yet valid", dates))
    if now > dates[1]:
        raise ConfigError(file, "", _not_now("certificate has expired", dates))


def _not_now(fault: str, dates: tuple[float, float] | None) -> str:
    """Return *fault* with the *dates* of the certificate, and what to do."""
    valid = "" if dates is None else f" (it is valid from {_date(dates[0])} to {_date(dates[1])})"
    return f"{fault}{valid}; check the clock, or renew the certificate or that of its authority"


def _shake_hands(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> set[str]:
    """Return the DNS names in the verified certificate. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MAX_TURNS):
        # TLS 1.3: the client is ready before the server has verified it.
        is_ready = [_advance(client), _advance(server)]
        if all(is_ready):
            break
    return dns_names(client.getpeercert() or {}) | dns_names(server.getpeercert() or {})


def _advance(side: ssl.SSLObject) -> bool:
    """Continue the handshake; return whether it is complete. Raises ssl.SSLError."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _date(seconds: float) -> str:
    """Return a time in seconds since 1970 as text, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
