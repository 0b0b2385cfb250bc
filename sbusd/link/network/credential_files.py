"""Passwords and keys of NATS in files, such as those of systemd's ``LoadCredential=``."""

from __future__ import annotations

import os
from pathlib import Path

from sbusd.config.certificates import check_private
from sbusd.config.files import ConfigError, NotRegularError, open_regular

SERVICE_USER = "sbus-link"
"""User of the service, sysusers.d/sbus-link.conf."""

MAX_SECRET_BYTES = 1_024
"""A longer file is neither a password nor a key."""


def read_secret(file: Path) -> str:
    """Return the content of *file* without surrounding white space: ASCII, one line.

    Raises:
        ConfigError: the file cannot be read, is accessible to others, or has other content.
    """
    try:
        with open_regular(file) as stream:
            check_private(file, os.fstat(stream.fileno()), SERVICE_USER)
            content = stream.read(MAX_SECRET_BYTES + 1)
    except NotRegularError:
        raise ConfigError(file, "", "not a regular file; store the password or key in one") from None
    except OSError as error:
        raise ConfigError(file, "", f"cannot read it: {error.strerror}; make it readable for the user {SERVICE_USER}") from None
    secret = content.strip()
    if not secret or len(content) > MAX_SECRET_BYTES:
        raise ConfigError(file, "", f"the password or key must have 1 to {MAX_SECRET_BYTES} bytes")
    if not all(0x20 <= byte < 0x7F for byte in secret):
        raise ConfigError(file, "", "the password or key must be one line of ASCII characters")
    return secret.decode("ascii")
