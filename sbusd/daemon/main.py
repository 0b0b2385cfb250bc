"""The program ``sbusd``: from the command line to a bus that serves, and to its end. Spec: sbusd(8)."""

from __future__ import annotations

import sys

from sbusd.config import load_daemon_settings
from sbusd.daemon.broker import Broker, Household
from sbusd.daemon.contract import MakeSwitch
from sbusd.daemon.journal import Journal
from sbusd.daemon.listener import open_listener
from sbusd.daemon.options import Options, SwitchName, parse_options
from sbusd.daemon.signals import Signals
from sbusd.protocol.errors import SbusError

def find_switch(name: SwitchName) -> MakeSwitch:
    """Return the switch of that name; only the one that is asked for is imported."""
    if name == "reference":
        from sbusd.daemon.reference import Switch as Reference  # noqa: PLC0415
        return Reference
    from sbusd.daemon.switch import Switch as Compiled  # noqa: PLC0415
    return Compiled

def main() -> None:
    import os
    options = parse_options(sys.argv[1:])
    settings = load_daemon_settings(options.main_file, required=options.config_file is not None)
    listener = open_listener(options)
    journal = Journal.open(settings.log, background=False)
    household = Household.of(settings, options.allowed_users, ends_when_empty=options.exit_after_last)
    broker = Broker(settings, household, journal, find_switch(options.switch))
    listener.listen()
    with Signals(broker.stop) as signals:
        broker.switch.listen(listener.fileno())
        broker.switch.watch(signals.fileno(), signals.drain)
        n = os.open("/dev/null", os.O_RDWR)
        os.dup2(n, 0); os.dup2(n, 1)
        while not broker.is_done:
            broker.switch.turn(-1)
    broker.switch.close()
    listener.close()
    journal.close()

if __name__ == "__main__":
    main()
