"""The user who is charged for a message of this host, wherever users share what the link has."""

from __future__ import annotations

from collections.abc import Callable

from sbusd.protocol.credentials import local_author, make_peer, split_sender


class Owners:
    """Finds the users of messages. *charged* returns the user that is charged for a uid, such as `ChargedUsers.of`."""

    def __init__(self, charged: Callable[[int], int]) -> None:
        self._charged = charged

    def of(self, sender: bytes) -> int:
        """Return the user who is charged for messages of *sender*, which is valid, as after ``!/from/<id>/``.

        A service that vouches for a user of this host is not charged, but that user.
        """
        parts = split_sender(sender)
        if parts is None:
            raise ValueError(f"invalid sender {sender[:64]!r}")
        own, origin = parts
        author = local_author(origin)
        return self._charged(make_peer(0, own).uid if author is None else author.uid)
