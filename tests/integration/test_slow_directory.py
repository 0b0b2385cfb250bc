"""A directory service that does not answer, such as LDAP by sssd, keeps no client of the bus waiting."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from sbus.protocol import controls
from tests.support import skips
from tests.support.daemons import StartDaemon
from tests.support.directories import slow_directory
from tests.support.users import FIRST, SECOND
from tests.support.wire import error_code

_RULES = '[[policy]]\nkeys = "lab/"\nsubscribe = "deny"\nusers = ["root"]\n'


def test_no_client_waits_for_a_directory_service(daemon: StartDaemon, folder: Path) -> None:
    skips.require_root()
    skips.require_program("gcc", "gcc")
    slow, config = folder / "slow", folder / "sbusd.toml"
    config.write_text(_RULES)
    bus = daemon("-C", str(config), env=slow_directory(folder, slow))
    owner, other = bus.client(), bus.client(SECOND)
    slow.touch()
    # Each of these asked the user database once, or asks it now in a thread.
    config.write_text(_RULES.replace("lab/", "hall/"))
    os.kill(bus.process.pid, signal.SIGHUP)
    for uid in (FIRST.uid, SECOND.uid, 0, 12_345):
        answer = json.loads(owner.ask(controls.EXPLAIN, b"%d\0subscribe\0lab/x" % uid))
        assert answer["groups_from"] == ("connection" if uid in {SECOND.uid, 0} else None)
    assert bus.client(FIRST).ask(controls.WHOAMI)
    other.subscribe(b"lab/x")
    owner.ask(controls.TRACE, b"lab/x")
    owner.subscribe(b"lab/x")
    assert other.barrier() == []
    assert [error_code(packet) for packet in owner.barrier()] == ["EPERM"]  # by the rules that still hold
    slow.unlink()
    while json.loads(owner.ask(controls.EXPLAIN, b"0\0subscribe\0lab/x"))["allowed"] is False:
        assert bus.process.poll() is None
