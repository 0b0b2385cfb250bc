"""Files with passwords and keys: private, small, one line."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sbus_programs.config.files import ConfigError
from sbus_services.link.network.credential_files import NkeyError, private_key, read_secret, sign
from tests.support.nats_servers import encoded, user_seed


def _file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_white_space_around_is_removed(tmp_path: Path) -> None:
    assert read_secret(_file(tmp_path, b"  a b\n\n")) == "a b"


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "must have 1 to 1024 bytes"),
        (b" \n", 0o600, "must have 1 to 1024 bytes"),
        (b"x" * 1025, 0o600, "must have 1 to 1024 bytes"),
        (b"a\nb", 0o600, "one line of ASCII characters"),
        (b"a\r\nPUB", 0o600, "one line of ASCII characters"),
        ("ä".encode(), 0o600, "one line of ASCII characters"),
        (b"secret", 0o644, "accessible to other users: mode 0644"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_secret(_file(tmp_path, content, mode))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, says in (("fifo", "not a regular file"), ("missing", "No such file"), (".", "Is a directory")):
        with pytest.raises(ConfigError, match=says):
            read_secret(tmp_path / name)


SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
"""A seed with a valid checksum."""


def test_a_signature_is_valid_for_the_public_key() -> None:
    public, signature = sign(SEED, b"nonce")
    assert public == "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"  # as the library of NATS encodes it
    key = Ed25519PublicKey.from_public_bytes(base64.b32decode(public)[1:-2])
    key.verify(base64.urlsafe_b64decode(signature + "=="), b"nonce")


@pytest.mark.parametrize(
    ("seed", "says"),
    [
        ("", "damaged"),
        ("x", "58 characters of base32"),
        (SEED.lower(), "58 characters of base32"),
        (SEED[:-1] + "A", "damaged"),
        (SEED[:-2], "damaged|base32"),
    ],
)
def test_an_invalid_seed_is_an_error(seed: str, says: str) -> None:
    with pytest.raises(NkeyError, match=says):
        private_key(seed)


def test_a_seed_has_the_private_key() -> None:
    assert user_seed(bytes(range(32))) == SEED
    assert private_key(SEED) == bytes(range(32))


def test_a_seed_of_another_kind_is_an_error() -> None:
    raw = base64.b32decode(SEED + "=" * 6)
    account = encoded(bytes([raw[0] & 0xF8, 0]) + raw[2:-2])
    with pytest.raises(NkeyError, match="not the seed of a user"):
        private_key(account)


def test_without_the_library_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(NkeyError, match="install python3-cryptography"):
        sign(SEED, b"nonce")
