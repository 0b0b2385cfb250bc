"""What a bus writes down as it goes, so that it is known after a kill(2) at any instant. Spec: sbusd(8), RESTARTS.

A message costs nothing here: only what the control plane does is written, a record a change, before the client learns of it.
"""

from __future__ import annotations

from sbusd.broker.roster import Client


class Chronicle:
    """That of a bus whose state nobody would keep: nothing is written."""

    def numbered(self, connection: int) -> None:
        """Note that a number of a connection is in use: before anybody learns of it."""

    def opened(self, client: Client) -> None:
        """Note that there is a new client."""

    def closed(self, client: Client) -> None:
        """Note that a client has gone."""

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Note that one more instance of a pattern is stored."""

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Note that there is one instance less."""

    def changed(self, client: Client) -> None:
        """Note that a client has asked for something else for itself: echo, modes."""

    def tapped(self, client: Client, pattern: bytes | None) -> None:
        """Note that a client has a tap, or with None that it has none any more."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return False

    def step(self) -> None:
        """Do a small part of the work that goes between turns."""

    def counts(self) -> dict[str, int]:
        """Return what could not be kept, and how often the log was rewritten, for statistics."""
        return {"connections_unparked": 0, "state_failures": 0, "state_rewrites": 0}
