"""The program ``sbusd``: from the command line to a bus that serves, and to its end. Spec: sbusd(8)."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import sbusd
from sbusd.config import ConfigError, DaemonSettings, LogSettings, check_daemon_settings, load_daemon_settings
from sbusd.daemon import messages
from sbusd.daemon.background import Presence, open_standard_streams
from sbusd.daemon.broker import Broker, Household
from sbusd.daemon.contract import MakeSwitch
from sbusd.daemon.journal import Journal
from sbusd.daemon.listener import open_listener
from sbusd.daemon.options import Options, SwitchName, parse_options
from sbusd.daemon.reload import Reloader
from sbusd.daemon.signals import Signals
from sbusd.protocol.errors import SbusError

EXIT_FAILED = 1


def main() -> None:
    """Run the program and exit: 0 after a normal end, 1 if the bus cannot start, 78 if its configuration is wrong (sysexits.h(3head))."""
    open_standard_streams()
    try:
        sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        # Through the journal's own door, so that it is found there by its id; with a terminal it is a line on standard error.
        journal = Journal.open(LogSettings(), background=False)
        journal.record(messages.CONFIGURATION_ERROR, reason=str(error))
        journal.close()
        sys.exit(os.EX_CONFIG)
    except SbusError as error:
        sys.stderr.write(f"sbusd: {error}\n")
        sys.exit(EXIT_FAILED)


def run(arguments: Sequence[str]) -> int:
    """Do what *arguments* ask for, and return the exit status.

    Raises:
        ConfigError: the configuration is wrong.
        SbusError: the command line is wrong, or the bus cannot start; the text is one line for the user.
    """
    options = parse_options(arguments)
    is_required = options.config_file is not None
    if options.check_config:
        sys.stdout.write(check_daemon_settings(options.main_file, required=is_required) + "\n")
        return 0
    serve(options, load_daemon_settings(options.main_file, required=is_required))
    return 0


def serve(options: Options, settings: DaemonSettings) -> None:
    """Open a bus, serve it until a signal or the last client ends it, and remove what it made. Raises SbusError if it cannot start."""
    with ExitStack() as ends:
        listener = open_listener(options)
        ends.callback(listener.close)
        presence = Presence.enter(options)
        ends.callback(presence.leave)
        journal = Journal.open(settings.log, background=presence.is_background)
        ends.callback(journal.close)
        _raise_descriptor_limit()
        household = Household.of(settings, options.allowed_users, ends_when_empty=options.exit_after_last)
        broker = Broker(settings, household, journal, find_switch(options.switch))
        ends.callback(broker.close)
        reloader = Reloader(options, settings, broker, journal)
        with Signals(broker.stop) as signals:
            broker.switch.watch(signals.fileno(), signals.drain)
            broker.switch.listen(listener.fileno())
            listener.listen()
            presence.ready(f"serving {listener.address}")
            journal.record(messages.STARTED, address=listener.address, version=sbusd.__version__)
            is_unsettled = False
            while not broker.is_done:
                broker.switch.turn(0 if is_unsettled else -1)
                is_unsettled = is_unsettled and broker.settle()
                if signals.take_hangup():
                    reloader.reload()
                    # So that a turn follows at once, at whose end those are buried whom the reload has ended.
                    is_unsettled = True
            presence.stopping()
        journal.record(messages.STOPPED, reason=broker.end_reason)


def find_switch(name: SwitchName) -> MakeSwitch:
    """Return the switch of that name; only the one that is asked for is imported, and there is no falling back from one to the other."""
    if name == "reference":
        from sbusd.daemon.reference import Switch as ReferenceSwitch  # noqa: PLC0415

        return ReferenceSwitch
    from sbusd.daemon.switch import Switch as CompiledSwitch  # noqa: PLC0415

    return CompiledSwitch


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the administrator does: the soft limit, 1024 by custom, is for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
