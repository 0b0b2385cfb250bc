"""How a session subscribes again on a new connection. No I/O. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbus.bus_calls import Call
    from sbus.session import Session


def resubscribe(session: Session) -> list[Call]:
    """Put the modes and the SUBs of all subscriptions into ``outgoing`` for a new connection, and return their calls.

    Patterns under the old connection's address follow when the new address is known. The list grows then, so wait for its calls in order.
    """
    posts = session.outgoing.set_aside()
    for packet in session.settings.packets:
        session.outgoing.put(packet)
        session.is_dirty = True
    calls = [session.ask_pacing()] if session.pacing.is_known else []
    if session.pacing.always:
        session.pacing.prepare(b"")
    patterns = [pattern for inbox in session.routes.inboxes for pattern in inbox.patterns]
    calls += session.ask_groups(patterns)
    old = session.previous_address
    if old and any(pattern.startswith(old) for pattern in patterns):

        def move(address: bytes) -> None:
            session.learn_address(address)
            calls.extend(session.subscribe_pattern(pattern) for pattern in session.routes.move(old, address))

        calls.append(session.ask_address(move))
    calls.extend(session.subscribe_pattern(pattern) for pattern in patterns if not (old and pattern.startswith(old)))
    if posts:
        session.pacing.restore(posts)
        session.is_dirty = True
    return calls
