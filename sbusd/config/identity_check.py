"""Checks the certificate of this host as the other hosts will: by a TLS handshake with itself, in memory."""

from __future__ import annotations

import datetime
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from sbusd.config.certificates import CertificateFiles, client_context, dns_names, server_context, validity_of
from sbusd.config.files import ConfigError

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
