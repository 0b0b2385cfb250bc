"""Messages that a client publishes in the name of others, as services do that pass messages on."""

from __future__ import annotations

from sbus import Bus
from sbus.encoding import Data
from sbus.vouching import vouched_publication


def publish_vouched(bus: Bus, origin: bytes, key: str | bytes, payload: Data = b"", *, to: int | None = None) -> None:
    """Publish as :meth:`Bus.publish`, in the name of *origin*. If the bus refuses it, the next receive or ping raises the refusal."""
    packet = vouched_publication(origin, key, payload, to=to)
    if not bus._link.send_now(packet):
        bus._link.send_later(packet)
