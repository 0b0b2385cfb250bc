"""How a connection begins to serve: it learns its address, has senders told, and subscribes. No I/O. Spec: sbus-rpc(7) §7."""

from __future__ import annotations

from sbusd.client.deadline import Deadline
from sbusd.client.inbox import Inbox
from sbusd.client.members import own_address
from sbusd.client.operation import Begin, Procedure
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.rpc.service import Reception
from sbusd.client.session import Session
from sbusd.protocol import controls
from sbusd.protocol.packets import control_packet

AT_ONCE = 64
"""Handlers that an ``AsyncBus`` runs at once: as many as one call to many has under way."""

DRAINED_AT_ONCE = 256
"""Requests taken in before the next one is run, so that the turns of users are among all that wait."""


def begin_serving(session: Session, reception: Reception, deadline: Deadline) -> Procedure[Inbox]:
    """Return the inbox of the services of *reception*, subscribed to. Duty: ``session.unsubscribe_all`` it.

    Senders are told from before the first pattern is stored, so every request comes with its sender.

    Raises:
        RemoteRefusal: the bus does not let this client serve one of the commands; it serves none then.
        ValueError: there is nothing to serve.
    """
    while True:
        yield from own_address(session, deadline)
        made: list[tuple[Inbox, list[Call]]] = []

        def start(made: list[tuple[Inbox, list[Call]]] = made) -> list[Call]:
            if not session.address:
                return []
            inbox = session.new_inbox(reception.patterns(session.address))
            mode = control_packet(controls.SENDER_ON)
            session.remember_mode(controls.SENDER_ON, mode)
            telling = session.send_call(Call("CMSG 'sender/on'", Expects.SILENCE), mode)
            made.append((inbox, session.subscribe(inbox)))
            return [telling, *made[0][1]]

        try:
            yield Begin(start, deadline)
            for _, calls in made:
                for call in calls:
                    call.result()
        except BaseException:
            for inbox, calls in made:
                session.roll_back(inbox, calls)
            raise
        if made:
            return made[0][0]
