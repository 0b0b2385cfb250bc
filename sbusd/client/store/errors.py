"""The errors of calls to sbus-store(8). Spec: sbus-store(8), "ERROR CODES"."""

from __future__ import annotations

from sbusd.client.errors import NoRecipient, RemoteError, SbusError
from sbusd.protocol.printable import printable

RESTARTING = "EAGAIN"
"""The code of a call that was not performed and can be sent again: the store restarts."""

_ADVICE = {
    "EACCES": "ask an administrator for the right to this key, or for the queue",
    "EDQUOT": "read, acknowledge or remove messages, or ask an administrator for a higher limit in store.toml(5)",
    "EMSGSIZE": "send less in one message",
    "ENOENT": "list what there is with `sbusctl store streams`",
    "ENOSPC": "free space on the disk of the store",
    "ESTALE": "the job is given to a worker again; use a longer lease, or extend it in time",
    "EHOSTDOWN": "look at the relays of both hosts: journalctl -u sbus-relay",
    "EIO": "look at the log: journalctl -u sbus-store",
    "EBUSY": "try again later",
    "EAGAIN": "try again",
}


class StoreError(SbusError, RuntimeError):
    """The store did not perform ``call``: ``code`` such as ``EDQUOT``, ``words`` that say why, ``advice`` that says what to do.

    ``words`` are printable.
    """

    def __init__(self, call: str, code: str, words: str) -> None:
        self.call = call
        self.code = code
        self.words = printable(words, 1_024)
        self.advice = _ADVICE.get(code, "")
        super().__init__(f"{call} failed: {code}: {self.words}" + (f"; {self.advice}" if self.advice else ""))


class StoreNotRunning(NoRecipient):
    """No service of the bus has the calls of the store, so nothing was done. Raised at once; a restart is waited for."""

    def __init__(self, command: str) -> None:
        advice = "start it: systemctl start sbus-store, or sbus-store -C FILE for a bus of your own"
        SbusError.__init__(self, f"cannot call {command!r}: sbus-store is not running on this bus; {advice}")
        self.command = command
        self.member = None


def store_error(error: RemoteError, twin: int | None = None) -> StoreError:
    """Return *error* of a call with its code. Errors without one are those of a relay if the store is on the host *twin*."""
    code, _, words = error.words.partition(" ")
    if not (code.isascii() and code.isupper() and code.startswith("E")):
        code, words = "EIO" if twin is None else "EHOSTDOWN", error.words
    return StoreError(error.command, code, words)
