"""The exit status that an error stands for. Spec: sbusctl(1), "EXIT STATUS"."""

from __future__ import annotations

from sbusd.client import CallTimeout, NoRecipient, PeerDisconnected, RemoteError

FAILED = 1
NO_RECIPIENT = 3
REMOTE_ERROR = 4
PEER_DISCONNECTED = 5
CALL_TIMEOUT = 6


def status_of(error: Exception) -> int:
    """Return the exit status for *error*: of a call that failed one by the way in which it did, else 1."""
    if isinstance(error, NoRecipient):
        return NO_RECIPIENT
    if isinstance(error, RemoteError):
        return REMOTE_ERROR
    if isinstance(error, PeerDisconnected):
        return PEER_DISCONNECTED
    return CALL_TIMEOUT if isinstance(error, CallTimeout) else FAILED
