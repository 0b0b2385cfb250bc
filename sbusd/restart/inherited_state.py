"""The state and the connections that the previous process left: in the service manager's store, or by a restart in place.

A restart in place is execve(2): the process id stays the same, and one environment variable has all that the new program needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from sbus_programs.systemd import service_manager
from sbusd.dataplane.switch_state import Within

VARIABLE = "SBUSD_HANDOVER"
"""The environment variable with the :class:`ReexecState` of a restart in place. Not for people."""

Descriptor = Annotated[int, Within(0, 1 << 31)]
"""A valid file descriptor."""


@dataclass(frozen=True, slots=True)
class ReexecState:
    """The state of this process that survives a restart in place: descriptors, and what the new program must not do again.

    It is written as JSON, with the names of the fields, and may be read by a newer version: never rename them.
    """

    listener: Descriptor
    listener_made: tuple[int, int] | None
    """Device and inode of the socket's path, if the bus created it."""
    background: bool
    pid_file: tuple[int, int] | None
    """Device and inode of the pid file, if the bus created it."""
    folder: str
    """The working directory at the start, for relative paths of the command line."""
    state: Descriptor | Literal[-1] = -1
    connection_store: tuple[Descriptor, ...] = ()
    """The ends of the connection store."""
    closing: tuple[tuple[Descriptor, int], ...] = ()
    """Sockets that still have to be closed, because that may block, with their inodes: a number may since belong to another socket."""
    stream_listener: Descriptor | Literal[-1] = -1
    """The stream socket that listens; -1: the bus has none."""
    stream_listener_made: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class InheritedState:
    """The state file and the connection store of the previous process, if any; ``reexec`` is set after a restart in place."""

    state: int | None = None
    connection_store: tuple[int, ...] = ()
    reexec: ReexecState | None = None
    sockets: dict[int, str] = field(default_factory=dict)
    """Other descriptors that systemd passed, with their names."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        return self.state is None and not self.connection_store

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the state file and of the connection store."""
        return self.connection_store if self.state is None else (self.state, *self.connection_store)


def take_reexec_state(environment: MutableMapping[str, str]) -> ReexecState | None:
    """Return the state of a restart in place, and remove it from *environment*; None if there is none, or if it is invalid."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    # Imported here because it is slow to import and rarely needed.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    try:
        return TypeAdapter(ReexecState).validate_json(text)
    except ValidationError:
        return None


def set_reexec_state(environment: MutableMapping[str, str], left: ReexecState) -> None:
    """Prepare *environment* and the descriptors of *left* for a restart in place."""
    environment[VARIABLE] = json.dumps(asdict(left))
    _set_inheritable(left, True)


def unset_reexec_state(environment: MutableMapping[str, str], left: ReexecState) -> None:
    """Undo :func:`set_reexec_state` after a restart that failed."""
    environment.pop(VARIABLE, None)
    _set_inheritable(left, False)


def _set_inheritable(left: ReexecState, on: bool) -> None:
    """Set whether the descriptors of *left* stay open over execve(2)."""
    streams = (left.stream_listener,) if left.stream_listener >= 0 else ()
    for fd in (left.state, left.listener, *streams, *left.connection_store):
        os.set_inheritable(fd, on)
    for fd, _ in left.closing:
        with suppress(OSError):
            os.set_inheritable(fd, on)


def inherited_state(passed: Mapping[int, str], reexec: ReexecState | None) -> InheritedState:
    """Return what this process inherits: the descriptors that systemd *passed*, with their names, or the state *reexec*."""
    sockets = {fd: name for fd, name in passed.items() if name not in service_manager.STORED_NAMES}
    if reexec is not None:
        return InheritedState(reexec.state, reexec.connection_store, reexec, sockets)
    by_name = {name: fd for fd, name in passed.items()}
    store = tuple(by_name[name] for name in service_manager.CONNECTION_STORE if name in by_name)
    return InheritedState(by_name.get(service_manager.STATE), store, None, sockets)
