"""The program ``sbusd``: from the command line to a bus that serves, and to its end. Spec: sbusd(8)."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.broker.ownership import BusOwnership
from sbusd.config import ConfigError, Configuration, LogSettings, check_daemon_settings, describe, load_configuration
from sbusd.daemon.daemonize import Presence, open_standard_streams
from sbusd.daemon.listener import Listener, open_listener, passed_descriptors, resume_listener
from sbusd.daemon.options import Options, SwitchName, parse_options
from sbusd.daemon.reload import Reloader
from sbusd.daemon.run import Run, Surface
from sbusd.daemon.stall_log import measured
from sbusd.dataplane.contract import MakeSwitch
from sbusd.protocol.errors import SbusError
from sbusd.restart.inherited_state import Heritage, heritage_of, take_in_place
from sbusd.restart.reexec import FAULTY
from sbusd.systemd import fdstore
from sbusd.systemd.service_manager import ServiceManager

EXIT_FAILED = 1


def main() -> None:
    """Run the program and exit: 0 after a normal end, 1 if the bus cannot start, 78 if its configuration is wrong (sysexits.h(3head))."""
    open_standard_streams()
    try:
        sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        # Through the journal's own door, so that it is found there by its id; with a terminal it is a line on standard error.
        journal = BusLog.open(LogSettings(), background=False)
        journal.record(log_messages.CONFIGURATION_ERROR, reason=str(error))
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
        return check(options)
    serve(options, load_configuration(options.main_file, required=is_required))
    return 0


def check(options: Options) -> int:
    """Say whether the configuration is good, and return the exit status: 65 if the bus would start with faults. Raises ConfigError."""
    configuration = check_daemon_settings(options.main_file, required=options.config_file is not None)
    for fault in configuration.faults:
        sys.stderr.write(f"sbusd: {fault}\n")
    if configuration.faults:
        return FAULTY
    sys.stdout.write(describe(configuration, options.main_file) + "\n")
    return 0


def serve(options: Options, configuration: Configuration) -> None:
    """Open a bus, or go on with that of the process before; serve it until it ends, and remove what it made. Raises SbusError."""
    settings = configuration.settings
    with ExitStack() as ends:
        manager = ServiceManager.of_environment()
        ends.callback(manager.close)
        folder = _current_folder()
        heritage = take_heritage(options)
        listener, presence = _surface(options, heritage, ends)
        journal = BusLog.open(settings.log, background=presence.is_background)
        ends.callback(journal.close)
        _raise_descriptor_limit()
        ownership = BusOwnership.of(settings, options.allowed_users, ends_when_empty=options.exit_after_last)
        broker = Broker(settings, ownership, journal, find_switch(options.switch))
        meter = ends.enter_context(measured(options.stalls_file, broker.switch))
        reloader = Reloader(options, configuration, broker, journal)
        run = Run(broker, journal, Surface(listener, presence, manager), reloader, folder, meter=meter)
        ends.callback(run.close)
        run.serve(heritage)


def _surface(options: Options, heritage: Heritage, ends: ExitStack) -> tuple[Listener, Presence]:
    """Return the socket and the presence of the bus, new ones or those of this same process before; *ends* will remove them."""
    before = heritage.in_place
    if before is None:
        listener = open_listener(options, heritage.sockets)
        ends.callback(listener.close)
        presence = Presence.enter(options)
    else:
        listener = resume_listener(before.listener, before.listener_made)
        ends.callback(listener.close)
        presence = Presence.resume(options, background=before.background, pid_file=before.pid_file)
    ends.callback(presence.leave)
    return listener, presence


def take_heritage(options: Options) -> Heritage:
    """Return what the process before this one has left, and what systemd has passed. Raises ListenError if that makes no sense."""
    in_place = take_in_place(os.environ)
    # With -a, what systemd passes is of no interest, but for what it has kept.
    wants_passed = options.address is None or fdstore.is_there(os.environ)
    return heritage_of(passed_descriptors() if in_place is None and wants_passed else {}, in_place)


def _current_folder() -> str:
    """Return where the bus was started; the root if that is not there any more."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def find_switch(name: SwitchName) -> MakeSwitch:
    """Return the switch of that name; only the one that is asked for is imported, and there is no falling back from one to the other."""
    if name == "reference":
        from sbusd.dataplane.reference import Switch as ReferenceSwitch  # noqa: PLC0415

        return ReferenceSwitch
    from sbusd.dataplane.switch import Switch as CompiledSwitch  # noqa: PLC0415

    return CompiledSwitch


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the administrator does: the soft limit, 1024 by custom, is for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
