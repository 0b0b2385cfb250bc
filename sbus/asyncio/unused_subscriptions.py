"""A warning about a subscription that a program made and never used, as Python warns about a coroutine that was never awaited."""

from __future__ import annotations

import warnings

from sbus.inbox import Inbox
from sbus.protocol.keys import text_of


class WarnsIfUnused:
    """The end of a subscription: its program has begun it, or has had an error because it had not, or it gets a RuntimeWarning."""

    _inbox: Inbox

    def __del__(self) -> None:
        """Warn if it is unused: the program probably waits for messages that cannot arrive."""
        if not self._inbox.is_used:
            where = ", ".join(repr(text_of(pattern)) for pattern in self._inbox.patterns)
            warnings.warn(f"the subscription to {where} was never awaited, so it never began", RuntimeWarning, stacklevel=2, source=self)
