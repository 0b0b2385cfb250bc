"""A paced publisher in this process, and recipients in others: slow ones of its user, and ones of another user that keep up."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sbus import Bus, Message
from tests.bench.programs import BenchError
from tests.bench.relays import Relay, confined, load_cpus

OTHER_UID = 65_534
"""The user of the recipients that keep up, if this process may take it on."""

PORTION = 50
"""Messages that a slow recipient reads one after the other;"""
PAUSE_SECONDS = 0.01
"""then it does something else for so long."""

QUEUE_BYTES = 1 << 20
"""The bound of a queue, so small that a slow recipient's is full most of the time: it holds 6,000 of these messages."""

LOST = 3
"""Exit status of a recipient that missed a message, or got one in another place."""

_PAYLOAD_BYTES = 64
_KEY = "bench/paced"


@dataclass(frozen=True, slots=True)
class Recipients:
    """Who reads."""

    slow: int
    fast: int


def transfer(relay: Relay, messages: int, recipients: Recipients) -> float:
    """Publish *messages* to *recipients*, and return how many there were in a second, until the last one had them all.

    Raises: BenchError if one lost a message, or got one out of order.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(confined(load_cpus()))
        children = [stack.enter_context(_child(lambda say: _read_slowly(relay, messages, say))) for _ in range(recipients.slow)]
        if recipients.fast:
            _open_to_others(relay)
            children.append(stack.enter_context(_child(lambda say: _read(relay, messages, recipients.fast, say))))
        for _, said in children:
            if os.read(said, 1) != b"r":
                raise BenchError("a recipient of paced messages did not get ready")
        begun = time.monotonic()
        with Bus.connect(str(relay.path), pace=True) as bus:
            for number in range(messages):
                bus.publish(_KEY, b"%d " % number + bytes(_PAYLOAD_BYTES))
            bus.ping()
            for pid, said in children:
                if os.read(said, 1) != b"e":
                    raise BenchError(f"recipient {pid} of paced messages lost one, or got one out of order")
        return messages / (time.monotonic() - begun)


def _open_to_others(relay: Relay) -> None:
    """Let another user reach the bus."""
    relay.path.parent.chmod(0o711)
    relay.path.chmod(0o666)


@contextlib.contextmanager
def _child(main: Callable[[Callable[[bytes], None]], None]) -> Iterator[tuple[int, int]]:
    """Run *main* in a process of its own; yield its number, and the descriptor on which it says ``r`` for ready and ``e`` at a good end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            main(lambda word: _say(writer, word))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    try:
        yield pid, reader
    finally:
        os.close(reader)
        os.waitpid(pid, 0)


def _say(descriptor: int, word: bytes) -> None:
    """Tell the parent."""
    os.write(descriptor, word)


def _read_slowly(relay: Relay, messages: int, say: Callable[[bytes], None]) -> None:
    """Read all messages and check them, with a pause behind each portion."""
    with Bus.connect(str(relay.path), queue_packets=PORTION) as bus, bus.subscribe(_KEY) as sub:
        say(b"r")
        number = 0
        while number < messages:
            number = _check(sub.receive(), number)
            if number % PORTION == 0:
                time.sleep(PAUSE_SECONDS)
        say(b"e")


def _read(relay: Relay, messages: int, connections: int, say: Callable[[bytes], None]) -> None:
    """Read from several connections of another user in turns, and check all messages."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
        os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
    with contextlib.ExitStack() as stack:
        subs = [stack.enter_context(stack.enter_context(Bus.connect(str(relay.path))).subscribe(_KEY)) for _ in range(connections)]
        say(b"r")
        numbers = [0] * connections
        while min(numbers) < messages:
            for place, sub in enumerate(subs):
                if numbers[place] < messages:
                    for item in sub.receive_many():
                        numbers[place] = _check(item, numbers[place])
        say(b"e")


def _check(item: object, number: int) -> int:
    """Return the number of the next message. Ends this process unless *item* is the message with *number*."""
    if not isinstance(item, Message) or int(item.payload.partition(b" ")[0]) != number:
        os._exit(LOST)
    return number + 1
