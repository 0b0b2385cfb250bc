"""Runs sbus-store so that it can be killed between a commit and the publication of what it has committed.

``killed_store.py ORDER PYTHON -m sbus_services.store.main ...``: if the file ORDER exists, the program is killed before it publishes
a message whose packet has the bytes in ORDER, which is removed then.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from unittest import mock

from sbus_services.store.bus_connections import ServingBus
from tools.stage import ROOT


def command(order: Path) -> tuple[str, str, str]:
    """Return the beginning of the command for *order*."""
    return sys.executable, str(ROOT / "tests/support/killed_store.py"), str(order)


def main() -> None:
    """Run the program."""
    order, send = Path(sys.argv[1]), ServingBus.send

    def killing_send(bus: ServingBus, packet: bytes) -> bool:
        if order.exists() and order.read_bytes() in packet:
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return send(bus, packet)

    sys.argv = ["sbus-store", *sys.argv[5:]]
    with mock.patch.object(ServingBus, "send", killing_send):
        runpy.run_module("sbus_services.store.main", run_name="__main__")


if __name__ == "__main__":
    main()
