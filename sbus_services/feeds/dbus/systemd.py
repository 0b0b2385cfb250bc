"""Follows the units and jobs of a service manager by its D-Bus signals. Source: org.freedesktop.systemd1(5).

A question about one unit loads that unit, and systemd then announces it to all subscribers and soon removes it. A feed that asked about
each new unit could ask forever. So new units are only looked up in lists of the loaded ones, several at a time, and properties are read of
units that were in such a list.

While the manager reloads, it announces the removal of all units and their return. These signals are ignored, and the units are compared
when it has finished. They are also compared after each period of activity: this finds changes without a signal, such as of the load state.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sbus_services.feeds.dbus.changes import ChangeTable
from sbus_services.feeds.dbus.connection import PROPERTIES, Caller, CallError, DBusSignal
from sbus_services.feeds.dbus.state_feed import StateCounters
from sbus_services.feeds.netlink.entries import Attributes, escape

UNIT_HEAD = "systemd/unit/"
JOB_HEAD = "systemd/job/"

UNIT_PATHS = "/org/freedesktop/systemd1/unit/"
JOB_PATHS = "/org/freedesktop/systemd1/job/"

_INTERFACE_PREFIX = "org.freedesktop.systemd1."
UNIT_INTERFACE = f"{_INTERFACE_PREFIX}Unit"
JOB_INTERFACE = f"{_INTERFACE_PREFIX}Job"

RESULT_TYPES = ("automount", "mount", "path", "scope", "service", "socket", "swap", "timer")
"""The types of units that have a result."""

_ESCAPED = re.compile(r"_([0-9a-f]{2})")


@dataclass(slots=True)
class Unit:
    """A unit. ``load`` is None until it was read: no signal has it."""

    name: str
    load: str | None = None
    active: str = "inactive"
    sub: str = "dead"
    result: str | None = None
    job: int | None = None
    was_used: bool = False
    """Whether it was active or had a job. A unit that was only loaded to be looked at leaves no message."""

    def __post_init__(self) -> None:
        if self.result is None and has_result(self.name):
            self.result = "success"

    def apply(self, changed: Mapping[str, Any]) -> None:
        """Apply changed properties: variants by name. Raises TypeError, ValueError, LookupError for other types than systemd's."""
        for name, variant in changed.items():
            match name, variant.value:
                case "ActiveState", str(value):
                    self.active = value
                case "SubState", str(value):
                    self.sub = value
                case "Result", str(value):
                    self.result = value
                case "Job", [int(number), str()]:
                    self.job = number or None
                case (("ActiveState" | "SubState" | "Result" | "Job"), value):
                    raise ValueError(f"{name} is {value!r}")
        self.note_use()

    def note_use(self) -> None:
        """Note whether the unit is used now."""
        self.was_used = self.was_used or self.active != "inactive" or self.job is not None

    def attributes(self) -> Attributes:
        """Return the published attributes."""
        return {"unit": self.name, "load": self.load, "active": self.active, "sub": self.sub, "result": self.result, "job": self.job}


@dataclass(slots=True)
class Job:
    """A job. ``type`` is None if it ended before it was read: no signal has it."""

    number: int
    unit: str
    type: str | None = None
    state: str | None = None
    result: str | None = None

    def attributes(self) -> Attributes:
        """Return the published attributes."""
        return {"job": self.number, "unit": self.unit, "type": self.type, "state": self.state, "result": self.result}


def unit_key(name: str) -> str:
    """Return the key of a unit."""
    return f"{UNIT_HEAD}{escape(name)}"


def job_key(number: int) -> str:
    """Return the key of a job."""
    return f"{JOB_HEAD}{number}"


def has_result(name: str) -> bool:
    """Return whether the unit *name* has the property Result."""
    return name.rpartition(".")[2] in RESULT_TYPES


def type_interface(name: str) -> str:
    """Return the D-Bus interface of the type of the unit *name*."""
    return f"{_INTERFACE_PREFIX}{name.rpartition('.')[2].capitalize()}"


def unit_of_path(path: str) -> str:
    """Return the name of the unit at *path*. Source: sd_bus_path_decode(3). Raises ValueError for another path."""
    if not path.startswith(UNIT_PATHS):
        raise ValueError(f"not the path of a unit: {path!r}")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), path.removeprefix(UNIT_PATHS))


def path_of_unit(name: str) -> str:
    """Return the path of the unit *name*."""
    # A digit at the beginning is escaped too.
    escaped = re.sub(r"[^A-Za-z0-9]|^[0-9]", lambda match: f"_{ord(match[0]):02x}", name)
    return f"{UNIT_PATHS}{escaped}"


def job_of_path(path: str) -> int:
    """Return the number of the job at *path*. Raises ValueError for another path."""
    return int(path.removeprefix(JOB_PATHS))


NAME = "org.freedesktop.systemd1"
PREFIX = "systemd/"

_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"

_ROUND_SECONDS = 0.02
"""Shortest interval between two lookups of new units and jobs."""

_LOOKUP_UNITS = 100
"""More new units than these are found in the list of all units: systemd compares each unit with each name."""

_QUIET_SECONDS = 2.0
"""Time without signals after which the units are compared."""

_CHECK_SECONDS = 30.0
"""Longest interval between two comparisons while there are signals."""

_MAX_READS = 32
"""Properties that are read at a time."""

_INTERFACES = (UNIT_INTERFACE, *(type_interface(f".{each}") for each in RESULT_TYPES))


class ServiceManagerSource:
    """The units and jobs of the service manager, system or user, in *table*."""

    name = NAME
    prefix = PREFIX
    rules = (
        f"type='signal',sender='{NAME}',path='{_PATH}',interface='{_MANAGER}'",
        *(
            f"type='signal',sender='{NAME}',interface='{PROPERTIES}',member='PropertiesChanged',"
            f"path_namespace='{UNIT_PATHS.rstrip('/')}',arg0='{interface}'"
            for interface in _INTERFACES
        ),
        f"type='signal',sender='{NAME}',interface='{PROPERTIES}',member='PropertiesChanged',path_namespace='{JOB_PATHS.rstrip('/')}'",
    )

    def __init__(self, table: ChangeTable, counters: StateCounters, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._counters = counters
        self._clock = clock
        self._units: dict[str, Unit] = {}
        self._jobs: dict[int, Job] = {}
        self._new_units: set[str] = set()
        """Units that must be looked up."""
        self._has_new_jobs = False
        self._has_units = False
        """Whether the units were read on this connection: earlier signals are older than the list."""
        self._is_reloading = False
        self._is_suspect = False
        self._signal_time: float | None = None
        """When the last signal since the last comparison arrived."""
        self._check_time = 0.0
        self._wake = asyncio.Event()

    async def follow(self, caller: Caller, current: Callable[[], None]) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.follow`."""
        self._has_units = self._is_reloading = self._is_suspect = False
        self._new_units.clear()
        try:
            await caller.call(_PATH, _MANAGER, "Subscribe")
        except CallError as error:
            if not error.name.endswith(".AlreadySubscribed"):
                raise
        await self._read_all(caller)
        await self._read_results(caller)
        current()
        while True:
            await self._wait()
            await self._look_up(caller)

    def handle(self, signal: DBusSignal) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.handle`."""
        self._signal_time = self._clock()
        self._wake.set()
        match signal.member, signal.body:
            case "PropertiesChanged", [str(interface), dict(changed), list()]:
                self._change(signal.path, interface, changed)
            case "UnitNew", [str(name), str()]:
                self._add_unit(name)
            case "UnitRemoved", [str(name), str()]:
                self._remove_unit(name)
            case "JobNew", [int(number), str(), str(name)]:
                if number not in self._jobs:
                    self._jobs[number] = Job(number, name)
                    self._has_new_jobs = True
            case "JobRemoved", [int(number), str(), str(name), str(result)]:
                self._remove_job(number, name, result)
            case "Reloading", [bool(is_active)]:
                self._is_reloading = is_active
                self._is_suspect = self._is_suspect or not is_active
            case (("UnitFilesChanged" | "StartupFinished"), _):
                pass
            case _:
                raise ValueError(f"{signal.path} {signal.signature}")

    def suspect(self) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.suspect`."""
        self._is_suspect = True
        self._wake.set()

    def _change(self, path: str, interface: str, changed: dict[str, Any]) -> None:
        """Apply changed properties of a unit or a job."""
        if interface == JOB_INTERFACE:
            job = self._jobs.get(job_of_path(path))
            if job is not None and job.type is not None and "State" in changed:
                job.state = str(changed["State"].value)
                self._show_job(job)
            return
        if not self._has_units:
            return
        name = unit_of_path(path)
        if name not in self._units:
            self._add_unit(name)
        if (unit := self._units.get(name)) is not None:
            unit.apply(changed)
            self._show_unit(unit)

    def _add_unit(self, name: str) -> None:
        """Add a unit that is published when it was looked up."""
        if self._has_units and not self._is_reloading and name not in self._units:
            self._units[name] = Unit(name)
            self._new_units.add(name)

    def _remove_unit(self, name: str) -> None:
        """Remove a unit."""
        if self._is_reloading:
            return
        self._new_units.discard(name)
        unit = self._units.pop(name, None)
        if unit is not None:
            self._table.remove(unit_key(name), self._clock(), unit.attributes(), is_notable=unit.was_used)

    def _remove_job(self, number: int, name: str, result: str | None) -> None:
        """Remove a job, with its result."""
        job = self._jobs.pop(number, None) or Job(number, name)
        job.result = result
        self._table.remove(job_key(number), self._clock(), job.attributes())

    def _show_unit(self, unit: Unit) -> bool:
        """Publish the state of a unit if it was looked up and has changed, and return whether it has."""
        unit.note_use()
        return unit.load is not None and self._table.put(unit_key(unit.name), unit.attributes(), self._clock())

    def _show_job(self, job: Job) -> bool:
        """Publish the state of a job if it has changed, and return whether it has."""
        return self._table.put(job_key(job.number), job.attributes(), self._clock())

    async def _wait(self) -> None:
        """Wait until something must be looked up or compared."""
        while not (self._new_units or self._has_new_jobs or self._is_suspect or self._is_check_due()):
            timeout = None if self._signal_time is None else max(0.0, self._due() - self._clock())
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _due(self) -> float:
        """Return when the next comparison is due."""
        return min((self._signal_time or 0.0) + _QUIET_SECONDS, self._check_time + _CHECK_SECONDS)

    def _is_check_due(self) -> bool:
        """Return whether to compare the units now."""
        return self._signal_time is not None and self._clock() >= self._due()

    async def _look_up(self, caller: Caller) -> None:
        """Read what must be looked up or compared; this takes at most a tenth of the time."""
        began = self._clock()
        if self._is_suspect or self._is_check_due() or len(self._new_units) > _LOOKUP_UNITS:
            counts = not self._is_suspect and self._is_check_due()
            self._is_suspect = False
            await self._read_all(caller, counts=counts)
        else:
            if self._new_units:
                names = sorted(self._new_units)
                await caller.call(
                    _PATH, _MANAGER, "ListUnitsByPatterns", "asas", [], names, apply=lambda reply: self._set_units(reply[0], names)
                )
            if self._has_new_jobs:
                self._has_new_jobs = False
                await caller.call(_PATH, _MANAGER, "ListJobs", apply=lambda reply: self._set_jobs(reply[0]))
        await asyncio.sleep(max(_ROUND_SECONDS, 9 * (self._clock() - began)))

    async def _read_all(self, caller: Caller, *, counts: bool = False) -> None:
        """Read all units and jobs. Differences count as corrections if *counts*."""
        self._check_time, self._signal_time = self._clock(), None
        self._has_new_jobs = False

        def set_units(reply: Sequence[Any]) -> None:
            self._counters.corrected += self._set_units(reply[0], None) * counts
            self._has_units = True

        def set_jobs(reply: Sequence[Any]) -> None:
            self._counters.corrected += self._set_jobs(reply[0]) * counts

        await caller.call(_PATH, _MANAGER, "ListUnits", apply=set_units)
        await caller.call(_PATH, _MANAGER, "ListJobs", apply=set_jobs)

    def _set_units(self, listed: Sequence[Any], asked: Sequence[str] | None) -> int:
        """Apply a list of units: of those *asked* for, or of all. Return how many known units differ."""
        differing = 0
        found = set()
        for name, _, load, active, sub, _, _, job, *_ in listed:
            unit = self._units.setdefault(name, Unit(name))
            is_known = unit.load is not None
            unit.load, unit.active, unit.sub, unit.job = str(load), str(active), str(sub), job or None
            differing += self._show_unit(unit) and is_known
            found.add(name)
        self._new_units.difference_update(found)
        for name in self._units.keys() - found if asked is None else set(asked) - found:
            # Removed: the signal has been or will be here, unless it was lost.
            unit = self._units.pop(name, Unit(name))
            self._new_units.discard(name)
            differing += unit.load is not None
            self._table.remove(unit_key(name), self._clock(), unit.attributes(), is_notable=unit.was_used)
        return differing

    def _set_jobs(self, listed: Sequence[Any]) -> int:
        """Apply the list of all jobs. Return how many known jobs differ."""
        differing = 0
        found = set()
        for number, name, kind, state, *_ in listed:
            job = self._jobs.setdefault(int(number), Job(int(number), str(name)))
            is_known = job.type is not None
            job.unit, job.type, job.state = str(name), str(kind), str(state)
            differing += self._show_job(job) and is_known
            found.add(job.number)
        for number in self._jobs.keys() - found:
            # The signal of the end would have been here before the reply: its result is unknown.
            differing += 1
            self._remove_job(number, self._jobs[number].unit, None)
        return differing

    async def _read_results(self, caller: Caller) -> None:
        """Read the results of all units: the list of units does not have them."""
        reads = asyncio.Semaphore(_MAX_READS)
        names = [name for name, unit in self._units.items() if unit.load == "loaded" and has_result(name)]
        await asyncio.gather(*(self._read_result(caller, name, reads) for name in names))

    async def _read_result(self, caller: Caller, name: str, reads: asyncio.Semaphore) -> None:
        """Read the result of one unit."""

        def apply(reply: Sequence[Any]) -> None:
            if (unit := self._units.get(name)) is not None:
                unit.apply({"Result": reply[0]})
                self._show_unit(unit)

        async with reads:
            try:
                await caller.call(path_of_unit(name), PROPERTIES, "Get", "ss", type_interface(name), "Result", apply=apply)
            except CallError:
                # Removed meanwhile: the signal is here already.
                return
