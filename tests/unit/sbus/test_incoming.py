"""Messages in received packets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sbus.errors import ProtocolError
from sbus.incoming import _CACHED_SENDERS, SENT_HEAD, MessageRun, Senders, measure_run
from sbus.items import Message
from sbus.protocol.credentials import make_peer
from sbus.protocol.packets import BATCH_HEAD, join_batch
from tools.stage import ROOT


def test_a_run_knows_its_messages_and_their_size() -> None:
    messages = [Message(b"a", b""), Message(b"", b"\0x"), Message(b"b/c", b"y" * 300)]
    batch = join_batch([b"MSG %b\0%b" % (each.key_bytes, each.payload) for each in messages])
    run = MessageRun(batch, len(BATCH_HEAD), *measure_run(batch, len(BATCH_HEAD)))
    assert run.count == 3
    assert run.messages() == messages
    assert run.size == sum(len(each.key) + len(each.payload) for each in messages)


@pytest.mark.slow
def test_what_is_not_built_is_replaced_and_said_so() -> None:
    program = (
        "import sys; sys.modules['sbus.speedups'] = None\n"
        "from sbus import incoming\n"
        "from sbus import plain_scanner\n"
        "assert incoming.measure_run is plain_scanner.measure_run\n"
        "print(incoming.IS_COMPILED)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"


def test_a_message_has_its_sender() -> None:
    senders = Senders()
    packet = SENT_HEAD + b"7/!/cred/1/2/3\0MSG a/b\0x\0y"
    first, second = senders.message(packet), senders.message(packet)
    assert first == second == Message(b"a/b", b"x\0y", make_peer(7, b"!/cred/1/2/3"))
    assert first.sender is second.sender


@pytest.mark.parametrize("packet", [b"7/!/cred/1/2/3\0SUB a", b"7/!/cred/1/2/3", b"x/!/cred/1/2/3\0MSG a\0", b"\0MSG a\0"])
def test_malformed_packets_are_rejected(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        Senders().message(SENT_HEAD + packet)


def test_a_flood_of_senders_does_not_grow_the_cache() -> None:
    senders = Senders()
    for number in range(_CACHED_SENDERS + 10):
        senders.message(b"%b%d/!/cred/1/2/3\0MSG a\0" % (SENT_HEAD, number))
    assert len(senders._peers) == 10
