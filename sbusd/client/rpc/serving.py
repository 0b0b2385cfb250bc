"""How a connection begins to serve: it asks for its address, sets ``sender/on``, and subscribes. No I/O. Spec: sbus-rpc(7) §7."""

from __future__ import annotations

from functools import partial

from sbusd.client.inbox import Inbox
from sbusd.client.operations import own_address
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.rpc.service import Dispatcher
from sbusd.client.session import Session
from sbusd.client.steps import Begin, Deadline, Operation
from sbusd.protocol import controls
from sbusd.protocol.packets import control_packet

MAX_CONCURRENT_HANDLERS = 64
"""Handlers that an ``AsyncBus`` runs concurrently: the number of requests of a group call that wait at the same time."""

QUEUED_REQUESTS = 256
"""Requests that are queued before the next one is run, so that the users of all of them take turns."""


def begin_serving(session: Session, dispatcher: Dispatcher, deadline: Deadline) -> Operation[Inbox]:
    """Subscribe to the services of *dispatcher*, and return their inbox. Duty: ``session.unsubscribe_all`` it.

    ``sender/on`` is set before the first pattern is stored, so every request arrives with its sender.

    Raises:
        RemoteRefusal: the bus does not permit this client to serve one of the commands; it serves none then.
        ValueError: there is nothing to serve.
    """
    while True:
        address = yield from own_address(session, deadline)
        inbox = session.new_inbox(dispatcher.patterns(address))
        step = Begin(partial(_subscribe, session, inbox, address), deadline)
        try:
            yield step
            step.result()
        except BaseException:
            session.roll_back(inbox, step.calls)
            raise
        if step.calls:
            inbox.is_begun = True
            return inbox


def _subscribe(session: Session, inbox: Inbox, address: bytes) -> list[Call]:
    """Put ``sender/on`` and the SUBs of *inbox* into the session, unless *address* has changed with a reconnection."""
    if session.address != address:
        return []
    mode = control_packet(controls.SENDER_ON)
    session.remember_mode(controls.SENDER_ON, mode)
    senders = session.send_call(Call("CMSG 'sender/on'", Expects.SILENCE), mode)
    return [senders, *session.subscribe(inbox)]
