"""What can go wrong between relays.

::

    SbusError
    ├── UnknownTwinError (LookupError)     nobody knows where the twin is: the call fails at once
    ├── ResolverAwayError (ConnectionError)     who would know does not answer: tried again
    ├── PeerAwayError (ConnectionError)    the twin cannot be reached, or has no room: tried again
    └── PeerRefusalError (ValueError)      the twin will not take it, however often it is asked: the call fails
"""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class UnknownTwinError(SbusError, LookupError):
    """Nobody knows where the twin is."""


class ResolverAwayError(SbusError, ConnectionError):
    """Who would know where the twin is does not answer."""


class PeerAwayError(SbusError, ConnectionError):
    """The twin cannot be reached, or cannot take it now."""


class PeerRefusalError(SbusError, ValueError):
    """The twin refuses the message."""
