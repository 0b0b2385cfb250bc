"""Errors of calls: ``err`` of the response is a code and words. Spec: sbus-store(8), "ERROR CODES"."""

from __future__ import annotations

from sbusd.client.errors import ServiceError
from sbusd.store.engine.messages import EngineError

RESTARTING = "restarting, try again"
"""The words of EAGAIN, by which a client knows that it may send the call again."""


class CallError(ServiceError):
    """A call that fails with *code* and *words*; both are sent to the caller."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code} {words}")
        self.code = code
        self.words = words


def restarting() -> CallError:
    """Return the error of calls that wait while the store stops."""
    return CallError("EAGAIN", RESTARTING)


def code_and_words(error: object) -> tuple[str, str]:
    """Return the code and the words of an error of a message or a lease."""
    if isinstance(error, CallError):
        return error.code, error.words
    if isinstance(error, EngineError):
        return error.code, error.reason
    return "EIO", "internal error"
