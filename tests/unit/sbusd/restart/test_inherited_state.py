"""The state that a process inherits: from the store, in place, or none."""

from __future__ import annotations

import json
import os

from sbus_programs.systemd import service_manager
from sbusd.restart.inherited_state import VARIABLE, ReexecState, inherited_state, set_reexec_state, take_reexec_state, unset_reexec_state


def test_the_state_of_a_restart_in_place_is_found_once_and_its_descriptors_stay_open() -> None:
    fds = [os.dup(0) for _ in range(6)]
    left = ReexecState(fds[0], (1, 2), True, None, "/folder", fds[1], tuple(fds[2:]))
    environment: dict[str, str] = {}
    for fd in fds:
        os.set_inheritable(fd, False)
    set_reexec_state(environment, left)
    assert all(os.get_inheritable(fd) for fd in fds)
    unset_reexec_state(environment, left)
    assert environment == {}
    assert not any(os.get_inheritable(fd) for fd in fds)
    set_reexec_state(environment, left)
    assert take_reexec_state(environment) == left
    assert take_reexec_state(environment) is None
    assert inherited_state({}, left).descriptors == tuple(fds[1:])
    for fd in fds:
        os.close(fd)


def test_an_invalid_variable_is_dropped() -> None:
    rest: dict[str, object] = {"listener": 3, "listener_made": None, "background": False, "pid_file": None, "folder": "/"}
    assert take_reexec_state({VARIABLE: json.dumps(rest)}) is not None
    wrong: list[dict[str, object]] = [
        {"listener": -5},
        {"listener": 1 << 31},
        {"state": -2},
        {"state": 1 << 40},
        {"connection_store": [1, 2, 3, -4]},
    ]
    for text in ("", "x", "{}", "[]", '{"listener": "x"}', *(json.dumps(rest | each) for each in wrong)):
        environment = {VARIABLE: text}
        assert take_reexec_state(environment) is None
        assert environment == {}


def test_stored_descriptors_are_separated_from_sockets() -> None:
    passed = {3: "sbus.socket", 4: service_manager.STATE} | {
        5 + place: name for place, name in enumerate(reversed(service_manager.CONNECTION_STORE))
    }
    inherited = inherited_state(passed, None)
    assert inherited.sockets == {3: "sbus.socket"}
    assert (inherited.state, inherited.connection_store) == (4, (8, 7, 6, 5))
    assert not inherited.is_empty
    assert inherited_state({3: "sbus.socket"}, None).is_empty


def test_there_is_a_store_unless_the_service_manager_denies_it() -> None:
    socket = {"NOTIFY_SOCKET": "/run/x"}
    assert service_manager.keeps_descriptors(socket)
    assert service_manager.keeps_descriptors(socket | {"FDSTORE": "16"})
    assert not service_manager.keeps_descriptors(socket | {"FDSTORE": "0"})
    assert not service_manager.keeps_descriptors({"FDSTORE": "16"})
