"""Seeds of nkeys, and signatures with them."""

from __future__ import annotations

import base64
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sbusd.link.network.nkey import NkeyError, private_key, sign
from tests.support.nats_servers import encoded, user_seed

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
