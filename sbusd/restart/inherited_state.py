"""What the process before this one has left: by the service manager's store, or by starting this one in its place.

In place is by execve(2): the process id stays, and all that is needed comes in one variable of the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from sbusd.dataplane.bounds import Within
from sbusd.systemd import fdstore

VARIABLE = "SBUSD_HANDOVER"
"""Where a process that starts anew in place tells itself what there is. Not for people."""

Descriptor = Annotated[int, Within(0, 1 << 31)]
"""What a descriptor can be."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """What a process knows of itself before it starts anew in place: descriptors, and what it must not do a second time."""

    listener: Descriptor
    listener_made: tuple[int, int] | None
    """Device and inode of the socket's path, if the bus made it."""
    background: bool
    pid_file: tuple[int, int] | None
    """Device and inode of the pid file, if the bus made it."""
    folder: str
    """Where the bus was started: relative paths of its command line begin there."""
    state: Descriptor | Literal[-1] = -1
    lot: tuple[Descriptor, ...] = ()
    closing: tuple[tuple[Descriptor, int], ...] = ()
    """Sockets that are not closed yet, because that may sleep, with their inodes: one that is closed meanwhile may be another's number."""


@dataclass(frozen=True, slots=True)
class Heritage:
    """The state and the parking lot of the process before, where there are any; ``in_place`` if this process is that one."""

    state: int | None = None
    lot: tuple[int, ...] = ()
    in_place: InPlace | None = None
    sockets: dict[int, str] = field(default_factory=dict)
    """What else systemd passed."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to go on with."""
        return self.state is None and not self.lot

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those of the state and of the lot."""
        return self.lot if self.state is None else (self.state, *self.lot)


def take_in_place(environment: MutableMapping[str, str]) -> InPlace | None:
    """Return what this same process has left before it was started anew, and take it out of the environment; None if it was not.

    A variable that says nothing sensible is nobody's: it is dropped.
    """
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    # Imported here, where it is seldom needed: it takes longer to import than all else does.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    try:
        return TypeAdapter(InPlace).validate_json(text)
    except ValidationError:
        return None


def set_in_place(environment: MutableMapping[str, str], left: InPlace) -> None:
    """Tell the process that is started in place of this one."""
    environment[VARIABLE] = json.dumps(asdict(left))
    _set_inheritable(left, True)


def unset_in_place(environment: MutableMapping[str, str], left: InPlace) -> None:
    """Undo :func:`set_in_place`: this process goes on."""
    environment.pop(VARIABLE, None)
    _set_inheritable(left, False)


def _set_inheritable(left: InPlace, on: bool) -> None:
    """Set whether the descriptors of *left* outlive execve(2)."""
    for fd in (left.state, left.listener, *left.lot):
        os.set_inheritable(fd, on)
    for fd, _ in left.closing:
        with suppress(OSError):
            os.set_inheritable(fd, on)


def heritage_of(passed: Mapping[int, str], in_place: InPlace | None) -> Heritage:
    """Return what there is, of what systemd *passed* by descriptor and name, and of what came *in_place*."""
    sockets = {fd: name for fd, name in passed.items() if name not in fdstore.NAMES}
    if in_place is not None:
        return Heritage(in_place.state, in_place.lot, in_place, sockets)
    by_name = {name: fd for fd, name in passed.items()}
    lot = tuple(by_name[name] for name in fdstore.CONNECTION_STORE if name in by_name)
    return Heritage(by_name.get(fdstore.STATE), lot, None, sockets)
