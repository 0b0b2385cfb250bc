"""Services on a D-Bus bus that imitate systemd and systemd-logind, for cases that real ones do not show on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dbus_fast import Variant

from sbus_services.feeds.dbus.systemd import JOB_PATHS, UNIT_INTERFACE, has_result, path_of_unit, type_interface, unit_of_path
from tests.support.dbus_services import DBusService, Reply

Result = TypeVar("Result")

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"


class ServiceManager(DBusService):
    """Imitates systemd: units with states, and jobs. A change is signalled unless ``is_silent``."""

    is_silent = False

    def begin(self, **units: str) -> None:
        """Answer calls; *units* are active states by names of services without suffix."""
        self.units: dict[str, dict[str, Any]] = {}
        self.jobs: dict[int, tuple[str, str, str]] = {}
        for name, active in units.items():
            self.units[f"{name}.service"] = _unit(active)
        self.handlers |= {
            "Subscribe": lambda path, body: ("", []),
            "ListUnits": lambda path, body: ("a(ssssssouso)", [[self._listed(name) for name in self.units]]),
            "ListUnitsByPatterns": lambda path, body: ("a(ssssssouso)", [[self._listed(name) for name in self.units if name in body[1]]]),
            "ListJobs": lambda path, body: ("a(usssoo)", [[self._job(number) for number in self.jobs]]),
            "Get": self._get,
        }

    def signal(self, member: str, signature: str, *body: Any, destination: str | None = None) -> None:
        """Send a signal of the manager."""
        self.emit(PATH, MANAGER, member, signature, *body, destination=destination)

    def load(self, name: str, active: str = "inactive") -> None:
        """Load a unit."""
        self.units[name] = _unit(active)
        self.signal("UnitNew", "so", name, path_of_unit(name))

    def unload(self, name: str) -> None:
        """Unload a unit."""
        del self.units[name]
        self.signal("UnitRemoved", "so", name, path_of_unit(name))

    def change(self, name: str, **values: Any) -> None:
        """Change ``active``, ``sub``, ``result`` or ``job`` of a unit."""
        unit = self.units[name]
        unit.update(values)
        if self.is_silent:
            return
        path = path_of_unit(name)
        if has_result(name):
            self.emit_changed(path, type_interface(name), {"Result": ("s", unit["result"]), "ControlPID": ("u", 0)})
        job = [unit["job"], f"{JOB_PATHS}{unit['job']}" if unit["job"] else "/"]
        changed = {"ActiveState": ("s", unit["active"]), "SubState": ("s", unit["sub"]), "Job": ("(uo)", job)}
        self.emit_changed(path, UNIT_INTERFACE, changed)

    def queue(self, number: int, name: str, kind: str = "start") -> None:
        """Queue a job."""
        self.jobs[number] = name, kind, "waiting"
        self.signal("JobNew", "uos", number, f"{JOB_PATHS}{number}", name)

    def finish(self, number: int, result: str = "done") -> None:
        """End a job."""
        name, _, _ = self.jobs.pop(number)
        self.signal("JobRemoved", "uoss", number, f"{JOB_PATHS}{number}", name, result)

    def _listed(self, name: str) -> list[Any]:
        """Return a unit as in the list of units."""
        unit = self.units[name]
        job = f"{JOB_PATHS}{unit['job']}" if unit["job"] else "/"
        return [
            name,
            "A unit",
            unit["load"],
            unit["active"],
            unit["sub"],
            "",
            path_of_unit(name),
            unit["job"],
            "start" if unit["job"] else "",
            job,
        ]

    def _job(self, number: int) -> list[Any]:
        """Return a job as in the list of jobs."""
        name, kind, state = self.jobs[number]
        return [number, name, kind, state, f"{JOB_PATHS}{number}", path_of_unit(name)]

    def _get(self, path: str, body: Sequence[Any]) -> Reply:
        """Return a property of a unit."""
        assert body[1] == "Result"
        return "v", [Variant("s", self.units[unit_of_path(path)]["result"])]


def _unit(active: str) -> dict[str, Any]:
    """Return a unit in this active state."""
    sub = {"active": "running", "inactive": "dead"}.get(active, active)
    return {"load": "loaded", "active": active, "sub": sub, "result": "success", "job": 0}


class LoginManager(DBusService):
    """Imitates systemd-logind."""

    NAME = "org.freedesktop.login1"
    PATH = "/org/freedesktop/login1"
    MANAGER = "org.freedesktop.login1.Manager"

    def begin(self) -> None:
        """Answer calls."""
        self.objects: dict[str, tuple[str, Any, dict[str, Variant]]] = {}
        """Kind, name and properties by path."""
        self.manager = {
            "PreparingForSleep": Variant("b", False),
            "PreparingForShutdown": Variant("b", False),
            "ScheduledShutdown": Variant("(st)", ["", 0]),
        }
        self.handlers |= {
            "ListSessions": lambda path, body: (
                "a(susso)",
                [[[name, 1000, "alice", "seat0", path] for path, (kind, name, _) in self.objects.items() if kind == "Session"]],
            ),
            "ListUsers": lambda path, body: (
                "a(uso)",
                [[[name, "alice", path] for path, (kind, name, _) in self.objects.items() if kind == "User"]],
            ),
            "ListSeats": lambda path, body: ("a(so)", [[[name, path] for path, (kind, name, _) in self.objects.items() if kind == "Seat"]]),
            "Get": lambda path, body: ("v", [self.manager[body[1]]]),
            "GetAll": lambda path, body: ("a{sv}", [self.objects[path][2]]),
        }

    def signal(self, member: str, signature: str, *body: Any) -> None:
        """Send a signal of the manager."""
        self.emit(self.PATH, self.MANAGER, member, signature, *body)

    def add_session(self, name: str, *, is_silent: bool = False, **properties: Variant) -> None:
        """Add a session of alice."""
        path = f"{self.PATH}/session/_3{name}"
        self.objects[path] = "Session", name, {**session_properties(name), **properties}
        if not is_silent:
            self.signal("SessionNew", "so", name, path)

    def remove_session(self, name: str) -> None:
        """Remove a session."""
        path = f"{self.PATH}/session/_3{name}"
        del self.objects[path]
        self.signal("SessionRemoved", "so", name, path)

    def change_session(self, name: str, property_name: str, variant: Variant, *, is_silent: bool = False) -> None:
        """Change a property of a session."""
        path = f"{self.PATH}/session/_3{name}"
        self.objects[path][2][property_name] = variant
        if not is_silent:
            self.emit_changed(path, f"{self.NAME}.Session", {property_name: (variant.signature, variant.value)})


def session_properties(name: str) -> dict[str, Variant]:
    """Return the properties of a session as logind has them."""
    return {
        "Id": Variant("s", name),
        "User": Variant("(uo)", [1000, "/org/freedesktop/login1/user/_1000"]),
        "Name": Variant("s", "alice"),
        "Timestamp": Variant("t", 1_700_000_000_500_000),
        "Seat": Variant("(so)", ["", "/"]),
        "Remote": Variant("b", True),
        "RemoteHost": Variant("s", "192.0.2.7"),
        "RemoteUser": Variant("s", ""),
        "Service": Variant("s", "sshd"),
        "Type": Variant("s", "tty"),
        "Class": Variant("s", "user"),
        "Active": Variant("b", True),
        "State": Variant("s", "active"),
        "IdleHint": Variant("b", False),
        "LockedHint": Variant("b", False),
    }


class ManagerThread:
    """A :class:`ServiceManager` with the services *units*, in a thread of its own, for tests of programs."""

    def __init__(self, address: str, **units: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._manager: ServiceManager = self._run(self._connect(address, units))

    def do(self, action: Callable[[ServiceManager], object]) -> None:
        """Run *action*, and wait until the D-Bus bus has its signals."""

        async def act() -> None:
            action(self._manager)
            await self._manager.flush()

        self._run(act())

    def close(self) -> None:
        """Close the connection, and end the thread."""
        self._loop.call_soon_threadsafe(self._manager.close)
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.05, self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self, address: str, units: dict[str, str]) -> ServiceManager:
        """Return the manager, which owns its name."""
        manager = await ServiceManager.connect(address)
        manager.begin(**units)
        await manager.own(NAME)
        return manager

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run *coroutine* in the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)
