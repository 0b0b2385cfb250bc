"""All attacks: their roles, the configuration of the daemon, and the share of the bus that an attack may take at full speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sbus.protocol.packets import LENGTH_BYTES, MAX_PACKET_BYTES, join_batch
from tests.attacks import descriptors, filesystems, roles
from tests.attacks.attacker import Role
from tests.attacks.hostile import numbered
from tests.attacks.probes import PACED_KEY, Probe, is_paced, is_served_after_rests, keeps_private_key, keeps_rows, rests
from tests.attacks.victim import KEY
from tests.support.users import SECOND

Roles = Callable[[], tuple[Role, ...]]
"""Creates new roles each time, because some hold an iterator."""

_HUGE = b"MSG huge/x\0" + bytes(MAX_PACKET_BYTES - 11)

BATCH_BYTES = 200_000
"""Of a hostile batch: as large as a socket's buffer is by default."""

_SMALL_QUOTAS = """[quotas]
connections = 32
subscriptions = 100
pattern_bytes = "64KiB"
queued_packets = 1000
queued_bytes = "1MiB"
control_rate = 100
control_burst = 500
connection_rate = 10
connection_burst = 100
"""
"""Which one user soon exhausts, while another works under the same."""


_MAY_VOUCH = f"""[rights]
vouch = {{ users = [{SECOND.uid}] }}
"""
"""With which the attacker passes messages on, as a service does that was taken over."""


_MAY_DELIVER = f"""[rights]
deliver = {{ users = [{SECOND.uid}] }}
vouch = {{ users = [{SECOND.uid}] }}
"""
"""With which the attacker sends to single connections, as a store does that was taken over."""


def _batch(packet: bytes) -> bytes:
    """Return a batch that repeats one packet."""
    return join_batch([packet] * (BATCH_BYTES // (len(packet) + LENGTH_BYTES)))


def _exhausting() -> tuple[Role, ...]:
    """Return roles that use up every quota."""
    return (
        roles.never_reads(16, b"SUB " + KEY),
        roles.opens_connections,
        roles.subscribes(roles.many_patterns()),
        roles.floods(1, roles.controls_of_all_sorts()),
    )


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on one daemon."""

    name: str
    roles: Roles
    takes_a_share: bool = False
    """Whether it keeps the bus busy: then the victim has its fair share of the bus at full speed, and no more."""
    config: str = ""
    """The daemon's configuration file; the defaults if empty."""
    has_old_kernel: bool = False
    """Whether the daemon's kernel cannot refuse descriptors, as those before Linux 6.16."""
    has_slow_directory: bool = False
    """Whether the daemon gets no answer when it asks for users, groups or hosts."""
    keeps_state: bool = False
    """Whether the daemon keeps its state as under a service manager."""
    probe: Probe | None = None
    """What it is judged by besides."""
    obstacle: Callable[[], str] = str
    """Returns why it cannot be tried on this machine; an empty text if it can."""


_FEW_CONNECTIONS = "[quotas]\nconnections = 2\n"
"""As many as the victim has."""

_MANY_CONNECTIONS = """[quotas]
connections = 1024
connection_burst = 100000
queued_bytes = "512MiB"
"""
"""With which one user has many connections, whose queues may hold a long message each."""

_BLOCKS_LAST = '[limits]\nblock_timeout = "1d"\nprogress_timeout = "1d"\n'
"""With which a recipient that asked to block blocks publishers of its user for as long as it likes."""

_DESCRIPTORS: tuple[tuple[str, Role] | tuple[str, Role, Callable[[], str]], ...] = (
    ("lingering sockets", descriptors.sends(descriptors.lingering)),
    ("lingering sockets in batches", descriptors.sends(descriptors.lingering, descriptors.BATCH)),
    ("lingering sockets, closes", descriptors.sends_and_closes(descriptors.lingering)),
    ("memory files", descriptors.sends(descriptors.large_memory)),
    ("epoll instances", descriptors.sends(descriptors.watching)),
    ("process descriptors", descriptors.sends(descriptors.process)),
    ("253 descriptors at once", descriptors.sends(descriptors.as_many_as_fit)),
    ("sockets in sockets", descriptors.sends(descriptors.holding)),
    ("cycles of sockets", descriptors.sends(descriptors.cycle)),
    ("full file systems", filesystems.sends_full_file_systems, filesystems.why_no_namespaces),
    ("FUSE files", filesystems.SendsFuseFiles(), filesystems.why_no_fuse),
)


def _descriptor_attacks(name: str, *, has_old_kernel: bool) -> tuple[Attack, ...]:
    """Return the attacks with descriptors, on this kernel or on one that cannot refuse them."""
    refused = Attack(
        f"{name} lingering sockets, turned away",
        lambda: (descriptors.sends_and_closes(descriptors.lingering, held=2),),
        takes_a_share=True,
        config=_FEW_CONNECTIONS,
        has_old_kernel=has_old_kernel,
    )
    others = (
        Attack(
            f"{name} {kind}",
            partial(_alone, role),
            takes_a_share=True,
            has_old_kernel=has_old_kernel,
            obstacle=obstacle[0] if obstacle else str,
        )
        for kind, role, *obstacle in _DESCRIPTORS
    )
    return (*others, refused)


def _alone(role: Role) -> tuple[Role, ...]:
    """Return the one role of an attack."""
    return (role,)


ATTACKS: tuple[Attack, ...] = (
    Attack("never reads", lambda: (roles.never_reads(16, b"SUB " + KEY),)),
    Attack("reads a byte a second", lambda: (roles.reads_a_byte_a_second(16),)),
    Attack("floods", lambda: (roles.floods(1, numbered(b"MSG flood/x\0")),), takes_a_share=True),
    Attack("floods, 64 connections", lambda: (roles.floods(64, numbered(b"MSG flood/x\0")),), takes_a_share=True),
    Attack("floods refused keys", lambda: (roles.floods(1, numbered(b"MSG !/no/", b"\0")),), takes_a_share=True),
    Attack("opens connections", lambda: (roles.opens_connections,), takes_a_share=True),
    Attack("subscribes without end", lambda: (roles.subscribes(roles.many_patterns()),), takes_a_share=True),
    Attack("longest patterns", lambda: (roles.subscribes(roles.longest_patterns()),), takes_a_share=True),
    Attack(
        "patterns of stars",
        lambda: (roles.uses_slow_patterns(roles.star_patterns(), b"aaaa/" * roles.STAR_DEPTH, b"\0"),),
        takes_a_share=True,
    ),
    Attack(
        "patterns of stems",
        lambda: (roles.uses_slow_patterns(itertools.islice(roles.stem_patterns(), 1_000), b"a" * 1_100, b"/x\0"),),
        takes_a_share=True,
    ),
    Attack("forges senders", lambda: (roles.floods(1, roles.forged_senders()),), takes_a_share=True),
    Attack("forges senders in batches", lambda: (roles.floods(8, map(_batch, roles.forged_senders())),), takes_a_share=True),
    Attack("reports losses", lambda: (roles.floods(1, roles.reported_losses(KEY)),), takes_a_share=True),
    Attack(
        "reports losses without end",
        lambda: (roles.never_reads(64, b"SUB l/0", b"SUB l/62"), roles.floods(8, roles.reported_losses(b"l/0"))),
        takes_a_share=True,
        config=_MAY_VOUCH,
    ),
    Attack(
        "vouches without end",
        lambda: (roles.never_reads(16, b"CMSG sender/on", b"SUB forged/"), roles.floods(8, map(_batch, roles.forged_senders()))),
        takes_a_share=True,
        config=_MAY_VOUCH,
    ),
    Attack("forges direct messages", lambda: (roles.floods(8, map(_batch, roles.direct_messages(KEY))),), takes_a_share=True),
    Attack(
        "direct messages without end",
        lambda: (
            roles.never_reads(16, b"SUB forged/"),
            roles.never_reads(16, b"CMSG blocking/hard/block", b"CMSG sender/on", b"SUB forged/"),
            roles.floods(8, map(_batch, roles.direct_messages(b"forged/x"))),
        ),
        takes_a_share=True,
        config=_MAY_DELIVER,
    ),
    Attack(
        "asks about users without end",
        lambda: (roles.asks_and_reads(8, roles.questions_about_users()),),
        takes_a_share=True,
        config=_MAY_DELIVER,
    ),
    Attack(
        "asks about users, a directory service does not answer",
        lambda: (roles.asks_and_reads(8, roles.questions_about_users()),),
        takes_a_share=True,
        config=_MAY_DELIVER,
        has_slow_directory=True,
    ),
    Attack("longest control messages", lambda: (roles.asks_and_reads(8, roles.longest_controls()),), takes_a_share=True),
    Attack("questions about the longest keys", lambda: (roles.asks_and_reads(8, roles.longest_questions()),), takes_a_share=True),
    Attack("control messages", lambda: (roles.floods(1, roles.controls_of_all_sorts()),), takes_a_share=True),
    Attack("control messages, read", lambda: (roles.asks_and_reads(8, roles.controls_of_all_sorts()),), takes_a_share=True),
    Attack("64 slow subscribers", lambda: (roles.publishes_to_slow_ones(bytes(1_000)),), takes_a_share=True),
    Attack(
        "a long message to 720 slow streams",
        lambda: (roles.publishes_to_slow_streams(720, bytes(400_000)),),
        takes_a_share=True,
        config=_MANY_CONNECTIONS,
    ),
    Attack("closes at every moment", lambda: (roles.closes_at_every_moment,) * 2, takes_a_share=True),
    Attack("half a million keys", lambda: (roles.floods(1, roles.distinct_keys()),), takes_a_share=True),
    Attack("asks to block the victim", lambda: (roles.asks_to_block,)),
    Attack("holds up a paced victim", lambda: (roles.never_reads(16, b"SUB " + PACED_KEY),), probe=is_paced),
    Attack(
        "holds up a paced victim, asks to block",
        lambda: (roles.never_reads(16, b"CMSG blocking/hard/block", b"SUB " + PACED_KEY),),
        probe=is_paced,
    ),
    Attack("guesses a private key, paced", lambda: (roles.never_reads(1, b"SUB " + PACED_KEY),), probe=keeps_private_key),
    Attack("churns subscriptions", lambda: (roles.churns,), takes_a_share=True),
    Attack("huge packets", lambda: (roles.floods(2, itertools.repeat(_HUGE)),), takes_a_share=True),
    Attack(
        "huge packets, the victim rests",
        lambda: (roles.floods(8, itertools.repeat(_HUGE)),),
        takes_a_share=True,
        probe=is_served_after_rests,
    ),
    Attack(
        "batches of tiny packets, the victim rests",
        lambda: (roles.floods(64, itertools.repeat(_batch(b"MSG tiny\0"))),),
        takes_a_share=True,
        probe=is_served_after_rests,
    ),
    Attack(
        "huge packets, 16 slow ones",
        lambda: (roles.never_reads(16, b"CMSG blocking/hard/discard", b"SUB huge/x"), roles.floods(2, itertools.repeat(_HUGE))),
        takes_a_share=True,
    ),
    Attack("batches of tiny packets", lambda: (roles.floods(1, itertools.repeat(_batch(b"MSG tiny\0"))),), takes_a_share=True),
    Attack(
        "batches of tiny packets, 16 fair queues",
        lambda: (roles.never_reads(16, b"CMSG order/fair", b"SUB tiny"), roles.floods(1, itertools.repeat(_batch(b"MSG tiny\0")))),
        takes_a_share=True,
    ),
    Attack(
        "random order, 240 slow ones",
        lambda: (
            roles.reads_now_and_then(240, b"CMSG order/random", b"SUB tiny"),
            roles.floods(1, itertools.repeat(_batch(b"MSG tiny\0"))),
        ),
        takes_a_share=True,
    ),
    Attack(
        "receipts for 240 recipients",
        lambda: (
            roles.reads_now_and_then(240, b"SUB tiny"),
            roles.asks_and_reads(1, itertools.repeat(join_batch([b"CMSG receipt/always\0t", b"MSG tiny\0"] * 100))),
        ),
        takes_a_share=True,
    ),
    Attack("batches, 64 connections", lambda: (roles.floods(64, itertools.repeat(_batch(b"MSG tiny\0"))),), takes_a_share=True),
    Attack("batches of controls", lambda: (roles.floods(1, itertools.repeat(_batch(b"CMSG !/bus/stats"))),), takes_a_share=True),
    Attack("malformed batches", lambda: (roles.floods(1, itertools.repeat(_batch(b"MSG tiny\0")[:-1])),), takes_a_share=True),
    Attack(
        "blocked within batches",
        lambda: (
            roles.never_reads(1, b"CMSG blocking/hard/block", b"SUB stuck"),
            roles.floods(128, itertools.repeat(_batch(b"MSG stuck\0" + bytes(1_000)))),
        ),
        takes_a_share=True,
        config=_BLOCKS_LAST,
    ),
    Attack("exhausts every quota", _exhausting, takes_a_share=True, config=_SMALL_QUOTAS),
    Attack("joins groups", lambda: (roles.joins_groups(16),)),
    Attack("leaves messages to members", lambda: (roles.leaves_messages_to_members,), takes_a_share=True),
    Attack("leaves with every pattern", lambda: (roles.leaves_with(roles.as_many_patterns()),), takes_a_share=True),
    Attack("leaves with the longest patterns", lambda: (roles.leaves_with(roles.as_long_patterns()),), takes_a_share=True),
    Attack(
        "leaves with every pattern, state kept",
        lambda: (roles.leaves_with(roles.as_many_patterns()),),
        takes_a_share=True,
        keeps_state=True,
    ),
    Attack(
        "events for 64 who do not read",
        lambda: (
            roles.never_reads(64, b"CMSG blocking/hard/discard", b"SUB !/event/subscribe/", b"SUB !/event/unsubscribe/"),
            roles.floods(1, itertools.cycle([b"SUB e/" + b"\1" * 4_000, b"UNSUB e/" + b"\1" * 4_000])),
        ),
        takes_a_share=True,
    ),
    Attack("churns long patterns, state kept", lambda: (roles.churns_long_patterns,), takes_a_share=True, keeps_state=True),
    Attack("churns presence, state kept", lambda: (roles.closes_at_every_moment,) * 2, takes_a_share=True, keeps_state=True),
    Attack("closed while blocked", lambda: (roles.closes_while_blocked,), config=_BLOCKS_LAST, probe=rests),
    Attack(
        "denials, a tap not read",
        lambda: (roles.floods(1, numbered(b"SUB !/no/" + b"\1" * 1_000)),),
        takes_a_share=True,
        probe=keeps_rows(5_000),
    ),
    Attack(
        "denied messages in batches, a tap not read",
        lambda: (roles.floods(8, itertools.cycle([_batch(b"MSG !/no/" + b"\1" * 1_000 + b"\0"), b"CMSG !/no/such"])),),
        takes_a_share=True,
        probe=keeps_rows(200),
    ),
    Attack(
        "events, a tap not read",
        lambda: (roles.floods(1, itertools.cycle([b"SUB e/" + b"\1" * 4_000, b"UNSUB e/" + b"\1" * 4_000])),),
        takes_a_share=True,
        probe=keeps_rows(5_000),
    ),
    *_descriptor_attacks("sends", has_old_kernel=False),
    *_descriptor_attacks("old kernel:", has_old_kernel=True),
)
