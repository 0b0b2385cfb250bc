"""The control messages that choose a connection's modes. Spec: sbus-protocol(7) §6 and §7."""

from __future__ import annotations

from sbusd.dataplane.contract import HardMode, Order, SoftMode

MODES: dict[bytes, SoftMode | HardMode | Order] = {
    **{b"blocking/soft/" + mode.name.lower().encode(): mode for mode in SoftMode},
    **{b"blocking/hard/" + mode.name.lower().encode(): mode for mode in HardMode},
    **{b"order/" + order.name.lower().encode(): order for order in Order},
}
"""The mode that each of these control messages chooses."""
