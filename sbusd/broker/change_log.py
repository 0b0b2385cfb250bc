"""The log of changes that a bus keeps for the next process: what is written to it. Spec: sbusd(8), RESTARTS."""

from __future__ import annotations

from sbusd.broker.roster import Client


class ChangeLog:
    """The log of control-plane changes, from which the next process restores the bus after a crash.

    This one is for a bus without a service manager that stores its state: it writes nothing. Messages are not logged and cost nothing here.
    Each change is one record, written before the client learns of the change.
    """

    def numbered(self, connection: int) -> None:
        """Log that a connection number is in use, before it becomes known."""

    def opened(self, client: Client) -> None:
        """Log a new client."""

    def closed(self, client: Client) -> None:
        """Log the end of a client."""

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Log one more instance of a pattern."""

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Log one instance of a pattern less."""

    def changed(self, client: Client) -> None:
        """Log the changed settings of a client: echo, modes."""

    def tapped(self, client: Client, pattern: bytes | None) -> None:
        """Log the tap of a client, or its end for None."""

    def named(self, client: Client) -> None:
        """Log the name of a client."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has work."""
        return False

    def step(self) -> None:
        """Do a small part of the work that happens between turns."""

    def counts(self) -> dict[str, int]:
        """Return the statistics of the log: failures, and how often it was rewritten."""
        return {"connection_store_failures": 0, "connections_missing": 0, "state_failures": 0, "state_rewrites": 0}
