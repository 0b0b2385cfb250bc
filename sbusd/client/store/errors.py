"""The errors of calls to sbus-store(8). Spec: sbus-store(8), "ERROR CODES"."""

from __future__ import annotations

from sbusd.client.errors import NoRecipient, RemoteError, SbusError, is_default, systemctl
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

    ``words`` are printable. ``advice`` is empty if they say what to do.
    """

    def __init__(self, call: str, code: str, words: str) -> None:
        self.call = call
        self.code = code
        self.words = printable(words, 1_024)
        # What follows a semicolon in the words of the store says what to do.
        self.advice = "" if "; " in self.words else _ADVICE.get(code, "")
        super().__init__(f"{call} failed: {code}: {self.words}" + (f"; {self.advice}" if self.advice else ""))


class StoreNotRunning(NoRecipient):
    """No service of the bus has the calls of the store, so nothing was done. Raised at once; a restart is waited for."""

    def __init__(self, command: str, bus: str = "/run/sbus.socket") -> None:
        """*bus* is the address of the bus that the command was called on."""
        advice = f"start it: {systemctl(bus)} start sbus-store" if is_default(bus) else "start it for this bus: sbus-store -C FILE"
        SbusError.__init__(self, f"cannot call {command!r}: sbus-store is not running on this bus; {advice}")
        self.command = command
        self.member = None
        self.reason = ""
        self.twin = None


def store_error(error: RemoteError, twin: int | None = None) -> StoreError:
    """Return *error* of a call with its code. Errors without one are those of a relay if the store is on the host *twin*."""
    code, _, words = error.words.partition(" ")
    if not (code.isascii() and code.isupper() and code.startswith("E")):
        code, words = "EIO" if twin is None else "EHOSTDOWN", error.words
    return StoreError(error.command, code, words)
