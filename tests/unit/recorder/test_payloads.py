"""How much of a payload is kept: the longest prefix decides, and of reserved keys nothing unless it is asked for by name."""

from __future__ import annotations

import pytest

from sbusd.config.recorder import PayloadRule
from sbusd.protocol.limits import MAX_PACKET_BYTES
from sbusd.recorder.payloads import Keep, PayloadPolicy

PAYLOAD = bytes(range(100))


@pytest.mark.parametrize(
    ("keep", "rules", "key", "kept"),
    [
        ("whole", (), b"a", PAYLOAD),
        ("none", (), b"a", None),
        (10, (), b"a", PAYLOAD[:10]),
        (0, (), b"a", b""),
        ("whole", (), b"!/cred/1/2/3/x", None),
        ("whole", (), b"!/conn/7/x", None),
        ("whole", (("", "whole"),), b"!/cred/1/2/3/x", None),
        ("whole", (("!", "whole"),), b"!/cred/1/2/3/x", None),
        ("whole", (("!/conn/", 5),), b"!/conn/7/x", PAYLOAD[:5]),
        ("whole", (("!/conn/", 5),), b"!/cred/1/2/3/x", None),
        ("none", (("", "whole"),), b"a", PAYLOAD),
        ("whole", (("a/", 1), ("a/b/", 2)), b"a/b/c", PAYLOAD[:2]),
        ("whole", (("a/b/", 2), ("a/", 1)), b"a/b/c", PAYLOAD[:2]),
        ("whole", (("a/", 1), ("a/", 2)), b"a/b", PAYLOAD[:2]),
        ("whole", (("ü/", 1),), "ü/x".encode(), PAYLOAD[:1]),
    ],
)
def test_what_is_kept(keep: Keep, rules: tuple[tuple[str, Keep], ...], key: bytes, kept: bytes | None) -> None:
    policy = PayloadPolicy(keep, [PayloadRule(prefix, much) for prefix, much in rules])
    for _ in range(2):  # the second time from memory
        assert policy.kept(key, PAYLOAD) == kept


def test_the_largest_payload_is_whole() -> None:
    assert PayloadPolicy().kept(b"a", bytes(MAX_PACKET_BYTES)) == bytes(MAX_PACKET_BYTES)


def test_what_is_remembered_is_bounded() -> None:
    policy = PayloadPolicy("none", [PayloadRule("k/7", "whole")])
    for number in range(10_000):
        policy.kept(b"k/%d" % number, b"x")
    assert len(policy._known) <= 4_096
    assert policy.kept(b"k/77", b"x") == b"x"
    assert policy.kept(b"k/8", b"x") is None
