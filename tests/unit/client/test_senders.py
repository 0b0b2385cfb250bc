"""Messages with their senders."""

from __future__ import annotations

import pytest

from sbusd.client.errors import ProtocolError
from sbusd.client.messages import Message
from sbusd.client.senders import _CACHED_SENDERS, SENT_HEAD, Senders
from sbusd.protocol.peers import make_peer


def test_a_message_has_its_sender() -> None:
    senders = Senders()
    packet = SENT_HEAD + b"7/!/cred/1/2/3\0MSG a/b\0x\0y"
    first, second = senders.message(packet), senders.message(packet)
    assert first == second == Message(b"a/b", b"x\0y", make_peer(7, b"!/cred/1/2/3"))
    assert first.sender is second.sender


@pytest.mark.parametrize("packet", [b"7/!/cred/1/2/3\0SUB a", b"7/!/cred/1/2/3", b"x/!/cred/1/2/3\0MSG a\0", b"\0MSG a\0"])
def test_what_no_bus_sends_is_refused(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        Senders().message(SENT_HEAD + packet)


def test_a_flood_of_senders_does_not_grow_the_cache() -> None:
    senders = Senders()
    for number in range(_CACHED_SENDERS + 10):
        senders.message(b"%b%d/!/cred/1/2/3\0MSG a\0" % (SENT_HEAD, number))
    assert len(senders._peers) == 10
