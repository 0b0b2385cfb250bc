"""What sees the messages of a session before its inboxes do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sbusd.client.messages import Message
from sbusd.protocol.errors import SbusError


class Listener(Protocol):
    """What a session asks first: the calls that wait for their answers."""

    def take(self, message: Message) -> bool:
        """Look at *message*; return whether it is nobody else's."""

    def watches(self, key: bytes) -> bool:
        """Return whether a message with *key* was expected here, though others may have it too."""

    def lost(self) -> None:
        """Take note that packets for this connection are missing."""

    def disconnected(self, make_error: Callable[[], SbusError]) -> None:
        """Fail all that waits: the connection is gone."""
