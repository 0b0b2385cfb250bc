"""The errors of calls to sbus-store(8). Spec: sbus-store(8), "ERROR CODES"."""

from __future__ import annotations

from sbus.errors import NoRecipient, RemoteError, SbusError, is_default, log_of, sbusctl, systemctl
from sbus.protocol.printable import printable

RESTARTING = "EAGAIN"
"""The code of a call that was not performed and can be sent again: the store restarts."""

_SYSTEM_ADDRESS = "/run/sbus.socket"

_ADVICE = {
    "EACCES": "ask an administrator for the right to this key, or for the queue",
    "EDQUOT": "read, acknowledge or remove messages, or ask an administrator for a higher limit in store.toml(5)",
    "EMSGSIZE": "send less in one message",
    "ENOENT": "list what there is with `{sbusctl} store streams`",
    "ENOSPC": "free space on the disk of the store",
    "ESTALE": "the job is given to a worker again; use a longer lease, or extend it in time",
    "EHOSTDOWN": "look at the relays of both hosts: {relay_log}",
    "EIO": "look at the log: {store_log}",
    "EBUSY": "try again later",
    "EAGAIN": "try again",
}


class StoreError(SbusError, RuntimeError):
    """The store did not perform ``call``: ``code`` such as ``EDQUOT``, ``words`` that say why, ``advice`` that says what to do.

    ``words`` are printable. ``advice`` is empty if they say what to do.
    """

    def __init__(self, call: str, code: str, words: str, bus: str = _SYSTEM_ADDRESS, *, is_remote: bool = False) -> None:
        """*bus* is the address of the bus that was called, *is_remote* whether the store is on another host."""
        self.call = call
        self.code = code
        self.words = printable(words, 1_024)
        # What follows a semicolon in the words of the store says what to do.
        self.advice = "" if "; " in self.words else _advice(code, bus, is_remote=is_remote)
        super().__init__(f"{call} failed: {code}: {self.words}" + (f"; {self.advice}" if self.advice else ""))


class StoreNotRunning(NoRecipient):
    """No service of the bus has the calls of the store, so nothing was done. Raised at once; a restart is waited for."""

    def __init__(self, command: str, bus: str = _SYSTEM_ADDRESS) -> None:
        """*bus* is the address of the bus that the command was called on."""
        advice = f"start it: {systemctl(bus)} start sbus-store" if is_default(bus) else "start it for this bus: sbus-store -C FILE"
        SbusError.__init__(self, f"cannot call {command!r}: sbus-store is not running on this bus; {advice}")
        self.command = command
        self.member = None
        self.reason = ""
        self.twin = None


def _advice(code: str, bus: str, *, is_remote: bool) -> str:
    """Return what to do about *code* on *bus*. Only the system bus has units of relays, and only the other host the log of its store."""
    store_log = "the log of sbus-store on that host" if is_remote else log_of("sbus-store", bus)
    relay_log = log_of("sbus-relay", bus if bus == _SYSTEM_ADDRESS else "")
    return _ADVICE.get(code, "").format(sbusctl=sbusctl(bus), store_log=store_log, relay_log=relay_log)


def store_error(error: RemoteError, twin: int | None = None, bus: str = _SYSTEM_ADDRESS) -> StoreError:
    """Return *error* of a call on *bus* with its code. Errors without one are those of a relay if the store is on the host *twin*."""
    code, _, words = error.words.partition(" ")
    if not (code.isascii() and code.isupper() and code.startswith("E")):
        code, words = "EIO" if twin is None else "EHOSTDOWN", error.words
    return StoreError(error.command, code, words, bus, is_remote=twin is not None)
