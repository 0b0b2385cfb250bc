"""What hostile users do: one function for each kind of process. All of it is bounded in number, and ends by a kill."""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import signal
import socket
import time
from collections.abc import Iterator

from sbus.protocol import controls
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch
from sbusd.dataplane.contract import MAX_GROUPS
from tests.attacks.attacker import MAX_DESCRIPTORS, AttackContext, Role
from tests.attacks.hostile import TIMEOUT_SECONDS, barrier, connect, connect_stream, numbered, send_many, until_refused
from tests.attacks.victim import KEY

HALF_A_MILLION = 500_000
SUBSCRIPTIONS = 200_000
STAR_DEPTH = 6
MOST_PATTERNS = 16_000
LONG_PATTERNS, LONG_PATTERN_BYTES = 1_900, 3_990
BLOCKED_SENDERS, HUNG_UP = 60, 20
QUIET_MS = 1_000
"""After so long without room to send, the bus reads none of the senders."""


def never_reads(connections: int, *packets: bytes) -> Role:
    """Return a role with connections that send *packets* and never read again."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path, *packets) for _ in range(connections)]
        context.count(len(held))
        context.begin()
        signal.pause()

    return run


def reads_a_byte_a_second(connections: int) -> Role:
    """Return a role with subscribers to the victim's key that receive one packet a second, into a buffer of one byte."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path, b"SUB " + KEY) for _ in range(connections)]
        for sock in held:
            sock.setblocking(False)
        context.begin()
        while True:
            for sock in held:
                with contextlib.suppress(BlockingIOError):
                    context.count(len(sock.recv(1)))
            time.sleep(1)

    return run


def reads_now_and_then(connections: int, *packets: bytes) -> Role:
    """Return a role with connections that send *packets*, and empty their sockets 20 times a second: their queues are full otherwise."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path, *packets) for _ in range(connections)]
        for sock in held:
            sock.setblocking(False)
        context.count(len(held))
        context.begin()
        while True:
            for sock in held:
                with contextlib.suppress(BlockingIOError):
                    while sock.recv(1):
                        pass
            time.sleep(0.05)

    return run


def floods(connections: int, packets: Iterator[bytes]) -> Role:
    """Return a role that sends *packets* as fast as the bus takes them, and reads nothing."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path) for _ in range(connections)]
        context.begin()
        for sent in send_many(held, packets):
            context.count(sent)

    return run


def asks_and_reads(connections: int, packets: Iterator[bytes]) -> Role:
    """Return a role that sends *packets* as fast as the bus takes them, and throws away every answer."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path) for _ in range(connections)]
        context.begin()
        for sent in send_many(held, packets):
            context.count(sent)
            for sock in held:
                with contextlib.suppress(OSError):
                    while sock.recv(1):
                        pass

    return run


def opens_connections(context: AttackContext) -> None:
    """Open connections until one is refused, keep them, and go on trying."""
    held: list[socket.socket] = []
    context.begin()
    while True:
        for sock in until_refused(context.path, MAX_DESCRIPTORS - 64 - len(held)):
            held.append(sock)
            context.count()
        with contextlib.suppress(OSError):
            connect(context.path).close()
        context.count()


def subscribes(patterns: Iterator[bytes]) -> Role:
    """Return a role that subscribes to *patterns*, however often it is refused."""
    return floods(1, (b"SUB " + pattern for pattern in patterns))


def many_patterns() -> Iterator[bytes]:
    """Return short patterns, each another."""
    return itertools.islice(numbered(b"s/"), SUBSCRIPTIONS)


def longest_patterns() -> Iterator[bytes]:
    """Return patterns of the greatest length, of separators alone but for their number."""
    return (b"%d%b" % (number, b"/" * (MAX_KEY_BYTES - len(str(number)))) for number in range(20_000))


def forged_senders() -> Iterator[bytes]:
    """Return messages in the name of root, well-formed and not."""
    message = b"\0MSG forged/x\0" + bytes(100)
    origins = (b"!/host/a/!/cred/0/0/1", b"!/cred/0/0/1", b"x" * 600 + b"/!/cred/0/0/1", b"x" * 490 + b"/!/cred/0/0/1", b"x/!/cred/0/0/")
    return itertools.cycle(b"CMSG !/from/" + origin + message for origin in origins)


def direct_messages(key: bytes) -> Iterator[bytes]:
    """Return direct messages with *key* to connections of all users, to none, and malformed ones."""
    message = b"MSG %b\0%b" % (key, bytes(100))
    numbers = (*(b"%d" % number for number in range(1, 41)), b"9" * 18, b"0", b"1" * 5_000)
    packets = [b"CMSG !/to/%b\0%b" % (number, message) for number in numbers]
    return itertools.cycle([*packets, b"CMSG !/to/1\0CMSG !/from/x/!/cred/0/0/1\0" + message, b"CMSG !/to/1\0" + packets[0]])


def questions_about_users() -> Iterator[bytes]:
    """Return questions about what other users may do."""
    return itertools.cycle(b"CMSG !/bus/explain\0%d\0publish\0%b" % (uid, b"k" * 4_000) for uid in range(1_000, 61_000, 7))


def longest_controls() -> Iterator[bytes]:
    """Return control messages as long as a packet, of bytes that take long to write as text, of segments and of NULs."""
    names = sorted({value for name, value in vars(controls).items() if name.isupper() and isinstance(value, bytes)} | {b"!/no/such"})
    heads = [b"CMSG " + name + b"\0" for name in names] + [b"CMSG !/bus/explain\0\0%b\0" % each for each in (b"publish", b"subscribe")]
    packets = [(head + fill * MAX_PACKET_BYTES)[:MAX_PACKET_BYTES] for head in heads for fill in (b"\xff", b"a/", b"*/", b"\0")]
    return itertools.cycle([*packets, *((word + b"\xff" * MAX_PACKET_BYTES)[:MAX_PACKET_BYTES] for word in (b"SUB ", b"UNSUB "))])


def longest_questions() -> Iterator[bytes]:
    """Return questions about the longest keys, of bytes that take long to write as text."""
    key = b"\xff" * MAX_KEY_BYTES
    asked = (b"trace\0", b"members\0", b"explain\0\0publish\0", b"explain\0\0subscribe\0")
    return itertools.cycle(b"CMSG !/bus/" + each + key for each in asked)


def reported_losses(pattern: bytes) -> Iterator[bytes]:
    """Return reports of losses for the subscribers of *pattern* and of others, well-formed and not."""
    lists = (pattern, b"\0".join(b"l/%d" % number for number in range(63)) + b"\0" + pattern, b"!/event/", b"*" * 4_000, b"l\0" * 10_000)
    return itertools.cycle(b"CMSG lost/for\0009\0" + patterns for patterns in lists)


def star_patterns() -> Iterator[bytes]:
    """Return all patterns of some segments that take a key of ``aaaa/aaaa/…``: each segment multiplies what a walk must follow."""
    segments = (b"*", b"a*", b"aa*", b"aaa*", b"aaaa")
    return (b"/".join(chosen) + b"/" for chosen in itertools.product(segments, repeat=STAR_DEPTH))


def stem_patterns() -> Iterator[bytes]:
    """Return ``a*``, ``aa*``, … of every length: one key begins with them all."""
    return (b"a" * length + b"*/x" for length in range(1, MAX_KEY_BYTES - 3))


def uses_slow_patterns(patterns: Iterator[bytes], head: bytes, tail: bytes) -> Role:
    """Return a role that subscribes to *patterns* and then floods with keys that they make slow, each another: none is cached."""

    def run(context: AttackContext) -> None:
        sock = connect(context.path)
        for sent in send_many([sock], (b"SUB " + pattern for pattern in patterns)):
            context.count(sent)
        context.begin()
        for sent in send_many([sock], numbered(b"MSG " + head, tail)):
            context.count(sent)

    return run


def publishes_to_slow_ones(payload: bytes) -> Role:
    """Return a role that publishes to 64 subscribers of its own, none of which reads."""

    def run(context: AttackContext) -> None:
        held = [connect(context.path, b"SUB slow/") for _ in range(64)]
        speaker = connect(context.path)
        context.begin()
        for sent in send_many([speaker], numbered(b"MSG slow/", b"\0" + payload)):
            context.count(sent)
        del held

    return run


def publishes_to_slow_streams(connections: int, payload: bytes) -> Role:
    """Return a role that publishes a long message to its own stream sockets, which take a part of it, and reads the rests; repeatedly."""

    def run(context: AttackContext) -> None:
        held = [connect_stream(context.path, b"SUB slow/") for _ in range(connections)]
        publisher = connect(context.path)
        context.begin()
        while True:
            publisher.send(b"MSG slow/x\0" + payload)
            barrier(publisher)
            left = held
            while left:
                left = [end for end in left if not end.receive(1)]
            context.count(len(held))

    return run


def closes_at_every_moment(context: AttackContext) -> None:
    """Connect, do some of what a client does, and close: after each possible step, with and without something left to read."""
    rng = random.Random(context.place)
    steps = [b"SUB " + KEY, b"SUB x/*", b"MSG x/y\0z", b"CMSG !/bus/ping\0a", b"CMSG !/cred/whoami", b"UNSUB x/*", b"MSG !/x\0", b"rubbish"]
    context.begin()
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(1)
            sock.connect(context.path)
            for packet in rng.choices(steps, k=rng.randrange(len(steps))):
                sock.send(packet)
            if rng.random() < 0.3:
                sock.shutdown(rng.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]))
            if rng.random() < 0.3:
                select.select([sock], [], [], 0.01)
                sock.setblocking(False)
                sock.recv(1)
        context.count()


def churns(context: AttackContext) -> None:
    """Subscribe and unsubscribe without end: each makes every cached route stale."""
    floods(1, itertools.cycle([b"SUB churn/*", b"UNSUB churn/*"]))(context)


def churns_long_patterns(context: AttackContext) -> None:
    """Hold nearly as many bytes of patterns as a user may, and subscribe to one more and end that without end."""
    held = [b"%d/" % number + b"\xff" * LONG_PATTERN_BYTES for number in range(LONG_PATTERNS)]
    sock = connect(context.path)
    for sent in send_many([sock], (b"SUB " + each for each in held)):
        context.count(sent)
    sock.settimeout(TIMEOUT_SECONDS)
    barrier(sock)
    context.begin()
    turns = itertools.cycle(word + each for each in held for word in (b"UNSUB ", b"SUB "))
    for sent in send_many([sock], turns):
        context.count(sent)
        with contextlib.suppress(BlockingIOError):
            while sock.recv(1):
                pass


def as_many_patterns() -> list[bytes]:
    """Return as many patterns as a user may have, each deep."""
    return [b"%d/" % number * 20 for number in range(MOST_PATTERNS)]


def as_long_patterns() -> list[bytes]:
    """Return as many bytes of patterns as a user may have, of separators alone but for their numbers."""
    return [b"%d/" % number + b"/" * LONG_PATTERN_BYTES for number in range(LONG_PATTERNS)]


def leaves_with(patterns: list[bytes]) -> Role:
    """Return a role that subscribes to *patterns* and closes, again and again; the first time before the attack begins."""

    def run(context: AttackContext) -> None:
        while True:
            with connect(context.path) as sock:
                for _ in send_many([sock], (b"SUB " + each for each in patterns)):
                    continue
                sock.settimeout(TIMEOUT_SECONDS)
                barrier(sock)
                context.begin()
            context.count()

    return run


def joins_groups(connections: int) -> Role:
    """Return a role with connections that never read, each in as many groups with the victim's key as it may be."""

    def run(context: AttackContext) -> None:
        held = []
        for number in range(connections):
            names = (b"%d" % (number * MAX_GROUPS + group) for group in range(MAX_GROUPS))
            held.append(connect(context.path, *(b"CMSG group/join\0%b\0%b" % (name, KEY) for name in names)))
            context.count()
        context.begin()
        signal.pause()

    return run


def leaves_messages_to_members(context: AttackContext) -> None:
    """Fill the queue of one member of a group, and end it, so that the bus gives its messages to the next one; again and again."""
    batch = join_batch([b"MSG inherited\0"] * 4_000)
    join = b"CMSG group/join\0g\0inherited"
    member = connect(context.path, join)
    context.begin()
    with connect(context.path) as publisher:
        publisher.settimeout(TIMEOUT_SECONDS)
        while True:
            for _ in range(4):
                publisher.send(batch)
            barrier(publisher)
            following = connect(context.path, join)
            barrier(following)
            member.close()
            member = following
            context.count()


def closes_while_blocked(context: AttackContext) -> None:
    """Fill what a user may have unread by senders that one stuck recipient blocks; then connect, send and close. After that do nothing."""
    stuck = connect(context.path, b"CMSG blocking/hard/block", b"SUB stuck")
    batch = join_batch([b"MSG stuck\0" + bytes(1_000)] * 150)
    senders = [connect(context.path) for _ in range(BLOCKED_SENDERS)]
    poller = select.poll()
    for each in senders:
        each.setblocking(False)
        poller.register(each, select.POLLOUT)
    by_fd = {each.fileno(): each for each in senders}
    while ready := poller.poll(QUIET_MS):
        for fd, _ in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    by_fd[fd].send(batch)
                    context.count()
    for _ in range(HUNG_UP):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(context.path)
            sock.send(b"MSG hung/up\0")
    context.begin()
    signal.pause()
    stuck.close()


def distinct_keys() -> Iterator[bytes]:
    """Return messages with half a million keys, over and over."""
    return itertools.cycle(b"MSG key/%d\0" % number for number in range(HALF_A_MILLION))


def controls_of_all_sorts() -> Iterator[bytes]:
    """Return the control messages that cost the bus most."""
    asked = [controls.STATS, controls.CONNECTIONS, controls.TRACE + b"\0" + KEY, controls.WHOAMI, controls.FEATURES, b"!/no/such"]
    return itertools.cycle(b"CMSG " + each for each in asked)


def asks_to_block(context: AttackContext) -> None:
    """Subscribe to the victim's key, ask that its publisher be stopped when the queue is full, and never read."""
    never_reads(16, b"CMSG blocking/soft/block", b"CMSG blocking/hard/block", b"SUB " + KEY)(context)
