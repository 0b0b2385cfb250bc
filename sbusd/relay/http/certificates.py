"""Mutual TLS, RFC 8446. The certificate of host 1002 names ``DNS:twin-1002``. Spec: sbus-relay(8)."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbusd.config.files import ConfigError
from sbusd.config.relay import MAX_TWIN, TlsSettings
from sbusd.relay.http.signature import check_private

_NAME = re.compile(r"twin-([1-9][0-9]{0,9})")


def twin_name(twin: int) -> str:
    """Return the DNS name in the certificate of *twin*."""
    return f"twin-{twin}"


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of the server: clients need a certificate of the authority. Raises ConfigError."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context of the client: servers need a certificate of the authority with their name. Raises ConfigError."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    return context


def twin_of(certificate: Mapping[str, Any]) -> int | None:
    """Return the host that a certificate names, in the form of ssl.SSLSocket.getpeercert(); None unless it names exactly one."""
    names = [_NAME.fullmatch(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    twins = {int(name[1]) for name in names if name}
    return twins.pop() if len(twins) == 1 and max(twins) <= MAX_TWIN else None


def _load(context: ssl.SSLContext, settings: TlsSettings) -> ssl.SSLContext:
    """Load this host's certificate and the trusted authority into *context*."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    key = Path(settings.key)
    try:
        context.load_cert_chain(settings.certificate, key)
        status = key.stat()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            Path(settings.certificate), "", f"cannot load certificate with private key {settings.key}: {_words(error)}"
        ) from None
    check_private(key, status)
    try:
        context.load_verify_locations(settings.authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(Path(settings.authority), "", f"cannot load CA certificates: {_words(error)}") from None
    return context


def _words(error: OSError) -> str:
    """Return the text of *error*."""
    return error.strerror or str(error)
