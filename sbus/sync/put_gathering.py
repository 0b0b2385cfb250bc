"""Puts of a ``Bus``: each is a call of its own, and the store commits those of several threads together. See ``asyncio.put_gathering``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import sleep as pause_for

from sbus.store.errors import StoreError
from sbus.store.items import Put
from sbus.store.requests import NewMessage, PutRequest, put_requests

__all__ = ["PutGathering", "pause_for"]


class PutGathering:
    """Puts messages one by one; *send* performs a call."""

    def __init__(self, send: Callable[[PutRequest], Sequence[Put | StoreError]]) -> None:
        self._send = send

    def put(self, message: NewMessage) -> Put | StoreError:
        """Put *message*, and return its outcome."""
        return next(outcome for request in put_requests([message]) for outcome in self._send(request))
