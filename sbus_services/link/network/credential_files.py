"""Credentials of NATS: passwords and keys in files, such as those of `LoadCredential=`, and authentication by an nkey.

A seed is base32 of: two bytes with the kind ``S`` and the kind of the key, 32 bytes of the private key, and a CRC-16 (XMODEM) of all before
it, little-endian. Source: github.com/nats-io/nkeys, README.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path

from sbus_programs.config.certificates import check_private
from sbus_programs.config.files import ConfigError, NotRegularError, open_regular

_KIND_SEED = 18 << 3
_KIND_USER = 20 << 3
_SEED_BYTES = 36
"""Two bytes of kinds, the key, and the checksum."""


class NkeyError(ValueError):
    """The seed cannot be used; the text says why."""


def private_key(seed: str) -> bytes:
    """Return the 32 bytes of the private key in the *seed* of a user. Raises NkeyError."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except (binascii.Error, ValueError):
        raise NkeyError("the seed of an nkey is 58 characters of base32, which begin with SU") from None
    if len(raw) != _SEED_BYTES or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise NkeyError("the seed of the nkey is damaged: its length or checksum is wrong")
    if raw[0] & 0xF8 != _KIND_SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _KIND_USER:
        raise NkeyError("the nkey is not the seed of a user, which begins with SU")
    return raw[2:-2]


def sign(seed: str, nonce: bytes) -> tuple[str, str]:
    """Return the public key of the user with this *seed*, and the signature of the server's *nonce*, both as NATS encodes them.

    Raises:
        NkeyError: the seed cannot be used, or the package cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - only nkeys need it
    except ModuleNotFoundError:
        raise NkeyError("nkeys need the Python package cryptography: install python3-cryptography, or pip install 'sbusd[link]'") from None
    key = Ed25519PrivateKey.from_private_bytes(private_key(seed))
    public = bytes([_KIND_USER]) + key.public_key().public_bytes_raw()
    public += binascii.crc_hqx(public, 0).to_bytes(2, "little")
    return base64.b32encode(public).decode().rstrip("="), base64.urlsafe_b64encode(key.sign(nonce)).decode().rstrip("=")


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
