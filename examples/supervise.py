"""Starts a command again whenever its process has left the bus: python3 examples/supervise.py python3 examples/rpc_service.py"""

import subprocess
import sys

from sbus import Bus, Change, PresenceEvent

with Bus.connect() as bus, bus.presence() as events:
    while True:
        with subprocess.Popen(sys.argv[1:]) as child:
            next(e for e in events if not isinstance(e, PresenceEvent) or (e.change, e.peer.pid) == (Change.DISCONNECT, child.pid))
            child.kill()  # also if events are missing, because its own can be among them
