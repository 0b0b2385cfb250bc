"""Credentials, the private keys that they open, and peers as the bus reports them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.credentials import (
    MAX_NAME_BYTES,
    Credentials,
    Peer,
    SecretPattern,
    is_credential_prefix,
    make_peer,
    parse_name,
    parse_secret_pattern,
    parse_sender,
)
from sbus.protocol.errors import ErrorCode, ProtocolError

PREFIX = b"!/cred/100/1000/1111"
PEER = Credentials(pid=19211, uid=1000, gid=100, groups=frozenset({4, 27}))


@pytest.mark.parametrize(
    ("pattern", "secret"),
    [
        (b"!/cred/100/1000/19211/x/y", SecretPattern(100, 1000, 19211, b"x/y")),
        (b"!/cred/100/1000/19211/", SecretPattern(100, 1000, 19211, b"")),
        (b"!/cred//1000//x", SecretPattern(None, 1000, None, b"x")),
        (b"!/cred/100///", SecretPattern(100, None, None, b"")),
        (b"!/cred////", SecretPattern(None, None, None, b"")),
        (b"!/cred/////", SecretPattern(None, None, None, b"/")),
        (b"!/cred/0/0/0/x", SecretPattern(0, 0, 0, b"x")),
        (b"!/cred/1/2/3/*", SecretPattern(1, 2, 3, b"*")),
        (b"!/cred/1/2/3/*/a/", SecretPattern(1, 2, 3, b"*/a/")),
        (b"!/cred/1/2/3/!/cred/", SecretPattern(1, 2, 3, b"!/cred/")),
        (b"!/cred/1/2/3/\n\xff", SecretPattern(1, 2, 3, b"\n\xff")),
        (b"!/cred/007/1/1/x", SecretPattern(7, 1, 1, b"x")),
        (b"!/cred/4294967295/1/1/x", SecretPattern(4294967295, 1, 1, b"x")),
    ],
)
def test_a_secret_pattern_names_ids(pattern: bytes, secret: SecretPattern) -> None:
    assert parse_secret_pattern(pattern) == secret
    assert parse_secret_pattern(PREFIX + b"/" + pattern, PREFIX) == secret


@pytest.mark.parametrize(
    "rest",
    [
        *[b"", b"1", b"1/", b"1/2", b"1/2/", b"1/2/3", b"//", b"*/2/3/x", b"1/*/3/x", b"1/2/*/x", b"1*/2/3/x", b"a/2/3/x", b"-1/2/3/x"],
        *[b"+1/2/3/x", b" 1/2/3/x", b"1 /2/3/x", b"0x1/2/3/x", b"1.0/2/3/x", b"1/2/3\n/x", b"\xd9\xa1/2/3/x", b"1_0/2/3/x", b"1e3/2/3/x"],
    ],
)
def test_an_id_is_decimal_or_empty_and_no_id_is_missing(rest: bytes) -> None:
    for pattern, prefix in ((b"!/cred/" + rest, b""), (PREFIX + b"/!/cred/" + rest, PREFIX)):
        with pytest.raises(ProtocolError, match="each id decimal or empty") as caught:
            parse_secret_pattern(pattern, prefix)
        assert caught.value.code is ErrorCode.EACCES


@pytest.mark.parametrize(
    "pattern",
    [
        *[b"!/cred/100/1000/19211/x", b"!/cred/100/1000/1112/!/cred/1/2/3/x", PREFIX + b"!/cred/1/2/3/x", PREFIX + b"/", PREFIX],
        *[PREFIX + b"/x", PREFIX + b"//!/cred/1/2/3/x", b"!/cred/0100/1000/1111/!/cred/1/2/3/x", b"!/cred/*/1000/1111/!/cred/1/2/3/x"],
    ],
)
def test_behind_a_server_its_prefix_is_required(pattern: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid private key: on this bus it must begin with !/cred/100/1000/1111/!/cred/") as caught:
        parse_secret_pattern(pattern, PREFIX)
    assert caught.value.code is ErrorCode.EACCES


@pytest.mark.parametrize(
    ("gid", "uid", "pid", "opens"),
    [
        (100, 1000, 19211, True),
        (None, None, None, True),
        (100, None, None, True),
        (None, 1000, None, True),
        (None, None, 19211, True),
        (4, 1000, 19211, True),
        (27, None, None, True),
        (5, 1000, 19211, False),
        (0, None, None, False),
        (100, 0, 19211, False),
        (100, 1000, 0, False),
        (None, 27, None, False),
        (1000, None, None, False),
        (None, 100, None, False),
        (None, None, 1000, False),
        (-1, None, None, False),
    ],
)
def test_every_id_that_is_named_must_be_the_peers(gid: int | None, uid: int | None, pid: int | None, opens: bool) -> None:
    assert SecretPattern(gid, uid, pid, b"x").opens_to(PEER) is opens


@pytest.mark.parametrize("digits", [b"4294967296", b"9999999999", b"18446744073709552616", b"1" + b"0" * 4_000])
def test_an_overflowing_id_belongs_to_no_user(digits: bytes) -> None:
    """4,294,967,296 is 0 to who counts in 32 bits: root's."""
    root = Credentials(pid=0, uid=0, gid=0)
    last = Credentials(pid=(1 << 31) - 1, uid=(1 << 32) - 1, gid=(1 << 32) - 1)
    for ids in (b"%b//", b"/%b/", b"//%b"):
        secret = parse_secret_pattern(b"!/cred/" + ids % digits + b"/x")
        assert not secret.opens_to(root)
        assert not secret.opens_to(last)
        assert not secret.opens_to(PEER)


def test_leading_zeros_do_not_change_a_number() -> None:
    """The spelling of whoami does not match such a pattern, but the id is the peer's own, however many zeros it has."""
    assert parse_secret_pattern(b"!/cred//" + b"0" * 10_000 + b"1000//x").opens_to(PEER)
    assert parse_secret_pattern(b"!/cred//" + b"0" * 10_000 + b"//x") == SecretPattern(None, 0, None, b"x")


def test_whoami_is_the_head_of_the_peers_own_keys() -> None:
    assert PEER.key() == b"!/cred/100/1000/19211"
    assert PEER.key(PREFIX) == PREFIX + b"/!/cred/100/1000/19211"
    for prefix in (b"", PREFIX):
        assert parse_secret_pattern(PEER.key(prefix) + b"/x", prefix).opens_to(PEER)


@pytest.mark.parametrize(
    ("prefix", "is_one"),
    [
        (PREFIX, True),
        (PREFIX + b"/" + PREFIX, True),
        (b"!/cred/0/0/0", True),
        (b"", False),
        (PREFIX + b"/", False),
        (PREFIX + PREFIX, False),
        (b"/" + PREFIX, False),
        (PREFIX + b"\n", False),
        (b"!/cred/1/2", False),
        (b"!/cred//1000/1111", False),
        (b"!/cred/1/2/*", False),
        (b"!/cred/a/1/1", False),
        (b"!.cred.1.1.1", False),
        (PREFIX + b"/x", False),
    ],
)
def test_a_prefix_is_whole_credentials(prefix: bytes, is_one: bool) -> None:
    assert is_credential_prefix(prefix) is is_one


IDS = st.integers(0, (1 << 32) - 1)
PEERS = st.builds(Credentials, pid=IDS, uid=IDS, gid=IDS, groups=st.frozensets(IDS, max_size=3))
PREFIXES = st.sampled_from([b"", PREFIX, PREFIX + b"/" + PREFIX])


@given(PEERS, PREFIXES, st.binary())
def test_a_peer_may_subscribe_to_its_whoami_key(peer: Credentials, prefix: bytes, rest: bytes) -> None:
    secret = parse_secret_pattern(peer.key(prefix) + b"/" + rest, prefix)
    assert secret == SecretPattern(peer.gid, peer.uid, peer.pid, rest)
    # All processes that the bus does not see have the id 0, so it names none of them.
    assert secret.opens_to(peer) is (peer.pid != 0)


@given(PEERS, PEERS)
def test_the_key_of_whoami_is_private(peer: Credentials, other: Credentials) -> None:
    same = peer.pid != 0 and (peer.pid, peer.uid) == (other.pid, other.uid) and peer.gid in {other.gid, *other.groups}
    assert parse_secret_pattern(peer.key() + b"/").opens_to(other) is same


@given(st.binary() | st.lists(st.sampled_from([b"/", b"1", b"*", b"!/cred/", PREFIX]), max_size=12).map(b"".join), PREFIXES)
def test_parsing_is_total(rest: bytes, prefix: bytes) -> None:
    for pattern in (rest, b"!/cred/" + rest, prefix + b"/!/cred/" + rest):
        with contextlib.suppress(ProtocolError):
            secret = parse_secret_pattern(pattern, prefix)
            assert pattern.endswith(b"/" + secret.rest)


def test_a_sender() -> None:
    peer = parse_sender(b"!/from/12/!/cred/100/1000/4242")
    assert peer == Peer(12, uid=1000, gid=100, pid=4242, key_bytes=b"!/cred/100/1000/4242")
    assert peer.address == "!/conn/12/"


ORIGIN = b"!/host/alpha/!/cred/0/0/1"


@pytest.mark.parametrize("own", [b"!/cred/9/990/55", b"!/cred/1/2/3/!/cred/9/990/55"])
@pytest.mark.parametrize("origin", [ORIGIN, b"x/" + ORIGIN, b"!/host/beta/!/cred/8/8/8/" + ORIGIN, b"!/!/cred/0/0/1"])
def test_an_author_is_no_user_of_this_host_whatever_the_origin_says(own: bytes, origin: bytes) -> None:
    peer = parse_sender(b"!/from/12/" + own + b"/" + origin)
    assert peer == Peer(12, uid=-1, gid=-1, pid=-1, key_bytes=own + b"/" + origin, origin_bytes=origin)
    assert peer.voucher == Peer(12, uid=990, gid=9, pid=55, key_bytes=own)
    assert peer.address == "!/conn/12/"
    # What is sent to it reaches the connection that passes messages on, and no process with the ids of the origin.
    secret = parse_secret_pattern(peer.key_bytes + b"/x", b"!/cred/1/2/3" if b"/!/cred/9" in own else b"")
    assert secret.opens_to(Credentials(55, 990, 9))
    assert not secret.opens_to(Credentials(1, 0, 0))


def test_a_connection_has_no_voucher() -> None:
    assert parse_sender(b"!/from/12/!/cred/100/1000/4242").voucher is None


def test_behind_a_prefix_the_last_credentials_are_its_own() -> None:
    key = b"!/cred/1/2/3/!/cred/100/1000/4242"
    assert make_peer(7, key) == Peer(7, uid=1000, gid=100, pid=4242, key_bytes=key)


@pytest.mark.parametrize(
    "key",
    [
        b"!/from/",
        b"!/from/x/!/cred/1/2/3",
        b"!/from/-1/!/cred/1/2/3",
        b"!/from/1/!/cred/1/2/",
        b"!/from/1/!/cred/1/2/3/",
        b"!/from/1/x!/cred/1/2/3",
        b"!/from/1/x/!/cred/1/2/3",
        b"!/from/1/!/cred/1/2/3/!/cred/4/5",
        b"!/from/1/!/cred/1/2/3/!/cred/4/5/x",
        b"!/from/1/!/cred/1/2/99999999999",
        b"!/from/1",
    ],
)
def test_a_key_without_a_sender(key: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_sender(key)
    assert caught.value.code is ErrorCode.EPROTO


@pytest.mark.parametrize("name", ["", "web-1", "caf\u00e9 2", "x" * MAX_NAME_BYTES])
def test_valid_names(name: str) -> None:
    assert parse_name(name.encode()) == name


@pytest.mark.parametrize("payload", [b"x" * (MAX_NAME_BYTES + 1), b"\xff", b"a\nb", b"\x1b[31m", "\u202ex".encode(), b"a\0b"])
def test_invalid_names(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="at most 64 bytes of printable UTF-8") as caught:
        parse_name(payload)
    assert caught.value.code is ErrorCode.EINVAL
