"""A stream or queue as the engine sees it: its settings, if it is configured, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.config.store import QueueSettings, StreamSettings
from sbusd.protocol.printable import printable
from sbusd.store.engine.figures import QueueFigures, StreamFigures
from sbusd.store.engine.key_map import KeyMatcher
from sbusd.store.engine.schema import message_id


@dataclass(slots=True)
class Stream:
    """A stream of the configuration."""

    settings: StreamSettings
    figures: StreamFigures
    matcher: KeyMatcher
    queue: Queue | None = None
    """Its queue, if it has one."""

    @property
    def name(self) -> str:
        """Its name for an error text."""
        return printable(self.settings.name)


@dataclass(slots=True)
class Queue:
    """A queue of the configuration."""

    settings: QueueSettings
    figures: QueueFigures

    @property
    def name(self) -> str:
        """Its name for an error text."""
        return printable(self.settings.name)


def id_range(figures: StreamFigures, first_seq: int = 0) -> tuple[int, int]:
    """Return the numbers of the first and last message of a stream, from *first_seq* on."""
    return message_id(figures.id, first_seq), message_id(figures.id, figures.last_seq)
