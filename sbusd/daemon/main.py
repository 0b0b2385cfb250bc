"""The program ``sbusd``: from the command line to a running bus, and to its end. Spec: sbusd(8)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config import (
    ConfigError,
    Configuration,
    LogSettings,
    check_daemon_settings,
    default_main_file,
    describe,
    load_configuration,
)
from sbus_programs.exhaustion import descriptor_shortage, exhausted, raised_descriptor_limit
from sbus_programs.standard_error import write_errors
from sbus_programs.standard_output import print_line
from sbus_programs.systemd import service_manager
from sbus_programs.systemd.log_records import MAX_FACT_BYTES
from sbus_programs.systemd.service_manager import ServiceManager
from sbus_programs.systemd.service_user import acting_as_user_of
from sbus_programs.systemd.signals import exit_on_ending_signals
from sbusd.broker import log_messages
from sbusd.broker.access import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.broker.quotas import LEAST_DESCRIPTORS
from sbusd.daemon.daemonize import Daemonizer, open_standard_streams
from sbusd.daemon.listener import Listener, open_listener, open_stream_listener, passed_descriptors, resume_listener
from sbusd.daemon.main_loop import MainLoop, ProcessContext, measure_stalls
from sbusd.daemon.options import Options, parse_options
from sbusd.daemon.reload import Reloader
from sbusd.restart.inherited_state import InheritedState, inherited_state, take_reexec_state
from sbusd.restart.program_check import FAULTY

EXIT_FAILED = 1

CANNOT_START = "cannot start: "
"""The status of a bus that cannot start begins with this, in ``sbus/bus_unit.py`` too."""

STATUS_CHARACTERS = 512
"""Maximum length of the reason in the status."""

TABLE_DESCRIPTORS = 65_536
"""Number of descriptors for which the kernel makes a table at the start, half a megabyte, if the limit is not lower."""


def main() -> None:
    """Run the program and exit: 0 after a normal end, 1 if the bus cannot start, 78 if its configuration is invalid (sysexits.h(3head))."""
    open_standard_streams()
    try:
        sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        # Logged, so that the journal has the message id; on a terminal it is a line on standard error.
        journal = BusLog.open(LogSettings(), background=False)
        journal.record(log_messages.CONFIGURATION_ERROR, reason=error.shown(MAX_FACT_BYTES))
        journal.close()
        sys.exit(os.EX_CONFIG)
    except SbusError as error:
        write_errors(f"sbusd: {error}\n")
        sys.exit(EXIT_FAILED)


def run(arguments: Sequence[str]) -> int:
    """Run the command line *arguments*, and return the exit status.

    Raises:
        ConfigError: the configuration is invalid.
        SbusError: the command line is invalid, or the bus cannot start; the text is one line for the user.
    """
    options = parse_options(arguments)
    is_required = options.config_file is not None
    if options.check_config:
        return check(options)
    try:
        serve(options, load_configuration(options.main_file, required=is_required))
    except SbusError as error:
        report_failure(error)
        raise
    except Exception as error:
        if (reason := exhausted(error)) is None:
            raise
        failure = SbusError(reason)
        report_failure(failure)
        raise failure from None
    return 0


def report_failure(error: SbusError) -> None:
    """Report *error* as the status of the service. Clients show it, because not every user may read the journal."""
    with contextlib.suppress(SbusError):
        manager = ServiceManager.of_environment()
        words = error.shown(STATUS_CHARACTERS) if isinstance(error, ConfigError) else printable(str(error), STATUS_CHARACTERS)
        manager.notify(f"STATUS={CANNOT_START}{words}")
        manager.close()


def check(options: Options) -> int:
    """Print whether the configuration is valid, and return the exit status: 65 if the bus would start with faults. Raises ConfigError.

    Root reads the files of the machine as the user of the service.
    """
    main_file = options.main_file
    unit = "sbus.service" if options.config_file in (None, default_main_file()) else f"sbus@{main_file.stem}.service"
    with acting_as_user_of(unit, main_file) as reader:
        configuration = check_daemon_settings(main_file, required=options.config_file is not None)
    for fault in configuration.faults:
        write_errors(f"sbusd: {fault}\n")
    if configuration.faults:
        return FAULTY
    print_line("sbusd", describe(configuration, main_file, reader))
    return 0


def serve(options: Options, configuration: Configuration) -> None:
    """Start a bus, or continue that of the previous process; serve until it ends, and remove its files. Raises SbusError."""
    settings = configuration.settings
    with ExitStack() as ends:
        manager = ServiceManager.of_environment()
        ends.callback(manager.close)
        folder = _current_folder()
        inherited = take_inherited_state(options)
        listeners, daemonizer = _listeners_and_daemonizer(options, inherited, ends)
        exit_on_ending_signals()  # not before: the parent of a bus in the background must not remove the socket of that
        raise_descriptor_limit()  # before the first thread starts and after the last fork
        journal = BusLog.open(settings.log, background=daemonizer.is_background)
        ends.callback(journal.close)
        ownership = BusOwnership.of(settings, options.allowed_users, ends_when_empty=options.exit_after_last, faults=configuration.faults)
        broker = Broker(settings, ownership, journal)
        meter = ends.enter_context(measure_stalls(options.stalls_file, broker.switch))
        reloader = Reloader(options, configuration, broker, journal)
        loop = MainLoop(broker, journal, ProcessContext(listeners, daemonizer, manager), reloader, folder, meter=meter)
        ends.callback(loop.close)
        loop.serve(inherited)


def _listeners_and_daemonizer(options: Options, inherited: InheritedState, ends: ExitStack) -> tuple[tuple[Listener, ...], Daemonizer]:
    """Return new ones, or after a restart in place those of this process; *ends* removes them."""
    before = inherited.reexec
    if before is None:
        listener = open_listener(options, inherited.sockets)
        ends.callback(listener.close)
        stream_listener = open_stream_listener(options, inherited.sockets)
        if stream_listener is not None:
            ends.callback(stream_listener.close)
        daemonizer = Daemonizer.enter(options)
    else:
        listener = resume_listener(before.listener, before.listener_made)
        ends.callback(listener.close)
        stream_listener = None
        if before.stream_listener >= 0:
            stream_listener = resume_listener(before.stream_listener, before.stream_listener_made, socket.SOCK_STREAM)
            ends.callback(stream_listener.close)
        daemonizer = Daemonizer.resume(options, background=before.background, pid_file=before.pid_file)
    ends.callback(daemonizer.leave)
    return (listener,) if stream_listener is None else (listener, stream_listener), daemonizer


def take_inherited_state(options: Options) -> InheritedState:
    """Return what the previous process left, and what systemd passed. Raises ListenError if the environment is invalid."""
    reexec = take_reexec_state(os.environ)
    # With -a, a socket of systemd is ignored, but not the descriptors in its store.
    wants_passed = options.address is None or service_manager.keeps_descriptors(os.environ)
    return inherited_state(passed_descriptors() if reexec is None and wants_passed else {}, reexec)


def _current_folder() -> str:
    """Return the working directory, or the root if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard limit, and let the kernel make the table for them.

    The usual soft limit of 1024 is for programs that use select(2). A table that grows while other threads run stops the thread that
    needs it for 5 to 15 ms, at each power of two (synchronize_rcu in expand_files of the kernel), so a user could stop the bus by
    opening connections. Raises SbusError if the limit leaves none for connections.
    """
    limit = raised_descriptor_limit()
    if (shortage := descriptor_shortage(limit, LEAST_DESCRIPTORS)) is not None:
        raise SbusError(shortage)
    with open(os.devnull, "rb") as null, contextlib.suppress(OSError):  # short of memory: the table grows when it must
        os.close(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, min(limit, TABLE_DESCRIPTORS) - 1))


if __name__ == "__main__":
    main()
