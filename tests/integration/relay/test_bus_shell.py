"""sbusctl(1) between two hosts: it serves a program to remote hosts, and calls it from a shell."""

from __future__ import annotations

import json

from tests.support.bus_hosts import FIRST, SECOND, MakeBusHosts
from tests.support.shell import Shell, running
from tools.stage import Stage

PROGRAM = 'echo "$SBUS_COMMAND of $SBUS_CALLER_TWIN for <$SBUS_CALLER_UID$SBUS_CALLER_GID$SBUS_CALLER_PID$SBUS_CALLER_USER>: $(cat)"'


def test_a_program_is_called_from_another_host(bus_hosts: MakeBusHosts, stage: Stage) -> None:
    a, b = bus_hosts()
    here, there = Shell(stage, a.daemon), Shell(stage, b.daemon)
    served = ["serve", "greet", "--exec", "sh", "--allow-twin", str(FIRST), "--", "-c", PROGRAM]
    with running(there, *served, until="relayed/greet"):
        said = here.succeed("call", "--twin", str(SECOND), "greet", "-", stdin=b"hello")
        assert said == f"greet of {FIRST} for <>: hello\n".encode()
        reported = json.loads(here.succeed("--json=short", "call", "--twin", str(SECOND), "--retries", "0", "greet", "again"))
        assert (reported["twin"], reported["data"]) == (SECOND, f"greet of {FIRST} for <>: again\n")
        done = here.run("call", "--twin", "4711", "greet", "x")
        assert (done.returncode, done.stderr) == (4, b"sbusctl: 'greet' failed: destination not found\n")
    with running(there, "serve", "greet", "--exec", "cat", "--allow-twin", "4711", until="relayed/greet"):
        done = here.run("call", "--twin", str(SECOND), "greet", "x")
        assert (done.returncode, done.stderr) == (4, f"sbusctl: 'greet' failed: twin {FIRST} may not call greet\n".encode())
    with running(there, "serve", "greet", "--exec", "cat", "--allow-twin", "all", until="relayed/greet"):
        assert here.succeed("call", "--twin", str(SECOND), "greet", "x") == b"x"
    a.host.relay.stop()
    done = here.run("call", "--twin", str(SECOND), "greet", "x")
    assert done.returncode == 3
    assert b"sbus-relay is not running on this bus" in done.stderr
