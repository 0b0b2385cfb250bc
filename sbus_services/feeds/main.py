"""The program sbus-feed(8), with one command for each feed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import typer

from sbus import Bus, Scope
from sbus_programs.config.files import default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.quantities import Duration, show_duration
from sbus_programs.helptext import (
    AddressOption,
    PlainCommand,
    PlainGroup,
    SystemOption,
    UsageError,
    UserOption,
    VersionOption,
    require_only,
    scope_of,
)
from sbus_programs.program import check_configuration, failing_with_status
from sbus_programs.standard_error import write_errors
from sbus_programs.systemd.service_manager import ServiceManager
from sbus_programs.systemd.signals import ENDING, WatchedSignals, exit_on_ending_signals, ignore_ending_signals
from sbus_services.feeds.bus_publisher import BusPublisher
from sbus_services.feeds.dbus.connection import MissingLibraryError
from sbus_services.feeds.journal.checked_publisher import AccessCheckError, CheckedPublisher
from sbus_services.feeds.journal.entry import CursorFile
from sbus_services.feeds.journal.feed import BACKLOG_SECONDS, RATE, JournalFeed, StartPosition
from sbus_services.feeds.journal.reader import JournalReader, bound_memory
from sbus_services.feeds.netlink.feed import REQUEST, NetlinkFeed
from sbus_services.feeds.netlink.sockets import Kernel
from sbus_services.feeds.netlink.stored_values import PublishedKeys, StoredValues
from sbus_services.feeds.udev import feed as udev_feed
from sbus_services.feeds.udev.devices import HEAD
from sbus_services.feeds.udev.sources import Udev


class _Feeds(PlainGroup):
    """The feeds. The name of one is the configuration of its unit, so a wrong name has the status of a wrong configuration."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name and the feed in *args*, and the rest of them. Raises UsageError for an unknown feed."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            error = UsageError(f"no such feed {args[0]!r}; the feeds are {', '.join(names[:-1])} and {names[-1]}", ctx)
            error.exit_code = os.EX_CONFIG
            raise error
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Feeds,
    help="Publish events of this machine on the bus.",
    epilog="See sbus-feed(8).",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def feed(_version: VersionOption = False) -> None:
    """Publish events of this machine on the bus."""


_RECEIVE_MIB_MOST = 1024

_LINES_MOST = 1_000_000
"""Seeking back that many entries takes a second or two before the feed is ready."""

_RATE_MOST = 1_000_000
"""More than can be read from a journal."""

_CHANGE_RATE = 1000
"""Changes per second of units or sessions."""
_SUBSYSTEM_BYTES = 255
"""Longest name in sysfs."""

_SUBSYSTEMS_MOST = 32
"""The kernel compares each event with all of them."""

_BACKLOG = Duration(0.0, 3650 * 86_400.0, "which is ten years")

_BACKLOG_TEXT = show_duration(BACKLOG_SECONDS)


def _duration(text: str) -> float:
    """Return the seconds of an option. Raises BadParameter."""
    try:
        return _BACKLOG.parse(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from wrong


@app.command(cls=PlainCommand)
def netlink(
    address: AddressOption = None,
    system: SystemOption = False,
    user: UserOption = False,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Network namespace to watch, see ip-netns(8).")] = None,
    receive_buffer: Annotated[
        int, typer.Option(metavar="KIB", min=1, max=_RECEIVE_MIB_MOST << 10, help="Netlink receive buffer in KiB.")
    ] = 4096,
) -> None:
    """Publish network links, addresses, routes and neighbours. Keys: net/…"""
    scope = scope_of(address, system=system, user=user)
    _run("netlink", lambda signals: _feed_netlink(signals, address, scope, namespace, receive_buffer << 10))


@app.command(name="journal", cls=PlainCommand)
def journal_command(
    *,
    address: AddressOption = None,
    system: SystemOption = False,
    user: UserOption = False,
    lines: Annotated[
        int, typer.Option(metavar="N", min=0, max=_LINES_MOST, help="Without a saved cursor, start with the last N entries.")
    ] = 0,
    backlog: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"With a saved cursor, publish at most this duration of the journal. Default: {_BACKLOG_TEXT}.",
        ),
    ] = None,
    rate: Annotated[int, typer.Option(metavar="N", min=1, max=_RATE_MOST, help="Maximum number of entries per second.")] = RATE,
    cursor_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File in which the journal cursor is saved.")] = None,
    directory: Annotated[Path | None, typer.Option(metavar="DIR", help="Read journal files from this directory.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Publish even if every user of the bus can read the journal.")] = False,
) -> None:
    """Publish journal entries of services and the kernel. Keys: journal/<unit>/<priority>"""
    scope = scope_of(address, system=system, user=user)
    start = StartPosition(lines, BACKLOG_SECONDS if backlog is None else _duration(backlog))
    place = cursor_file if cursor_file is not None else _kept_cursor()
    if backlog is not None and place is None:
        raise typer.BadParameter("--backlog requires --cursor-file: without it, no cursor is saved")
    file = CursorFile(place)
    publisher = CheckedPublisher.to_bus(address, scope, _log, is_public=public)
    _run("journal", lambda signals: _feed_journal(signals, publisher, directory, file, start, rate=rate))


@app.command(name="udev", cls=PlainCommand)
def udev_command(
    *,
    address: AddressOption = None,
    system: SystemOption = False,
    user: UserOption = False,
    subsystem: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Publish devices of this subsystem only. Can be repeated.")
    ] = None,
    receive_buffer: Annotated[
        int, typer.Option(metavar="KIB", min=1, max=_RECEIVE_MIB_MOST << 10, help="Netlink receive buffer in KiB.")
    ] = 4096,
    rate: Annotated[int, typer.Option(metavar="N", min=1, max=_RATE_MOST, help="Maximum number of events per second.")] = udev_feed.RATE,
) -> None:
    """Publish events and properties of devices. Keys: udev/<subsystem>/<action>/<name>"""
    scope = scope_of(address, system=system, user=user)
    names = _subsystems(subsystem or [])
    _run("udev", lambda signals: _feed_udev(signals, address, scope, names, receive_buffer << 10, rate=rate))


@app.command(name="systemd", cls=PlainCommand)
def systemd_command(
    address: AddressOption = None,
    system: SystemOption = False,
    user: Annotated[
        bool, typer.Option("--user", help="Connect to the calling user's bus, and publish the units of the user manager.")
    ] = False,
    dbus_address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the D-Bus bus of the service manager.")] = None,
    rate: Annotated[int, typer.Option(metavar="N", min=1, max=_RATE_MOST, help="Maximum number of changes per second.")] = _CHANGE_RATE,
) -> None:
    """Publish states of units and jobs of systemd. Keys: systemd/unit/<unit>, systemd/job/<id>"""
    scope = scope_of(address, system=system, user=user)
    _run("systemd", lambda _signals: _feed_state("systemd", address, scope, dbus_address, rate))


@app.command(name="logind", cls=PlainCommand)
def logind_command(
    *,
    address: AddressOption = None,
    system: SystemOption = False,
    user: UserOption = False,
    dbus_address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the D-Bus system bus.")] = None,
    rate: Annotated[int, typer.Option(metavar="N", min=1, max=_RATE_MOST, help="Maximum number of changes per second.")] = _CHANGE_RATE,
    remote_hosts: Annotated[bool, typer.Option("--remote-hosts", help="Publish the host and user of remote sessions too.")] = False,
) -> None:
    """Publish sessions, users, seats and shutdowns of systemd-logind. Keys: logind/…"""
    scope = scope_of(address, system=system, user=user)
    _run("logind", lambda _signals: _feed_state("logind", address, scope, dbus_address, rate, has_addresses=remote_hosts))


@app.command(name="dbus", cls=PlainCommand)
def dbus_command(
    context: typer.Context,
    *,
    address: AddressOption = None,
    system: SystemOption = False,
    user: Annotated[
        bool, typer.Option("--user", help="Connect to the calling user's bus, and publish signals of the user's D-Bus bus.")
    ] = False,
    dbus_address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the D-Bus bus.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Configuration file (default: /etc/sbus/feed-dbus.toml).")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
) -> None:
    """Publish the D-Bus signals that the configuration names. Keys: dbus/…"""
    scope = scope_of(address, system=system, user=user)
    if check:
        require_only(context, "--check", "check", "config", "user", "system")
    _run("dbus", lambda _signals: _feed_signals(address, scope, dbus_address, config, is_check=check))


def main() -> None:
    """Run the program. SIGTERM and SIGINT end it with status 0 at any time."""
    exit_on_ending_signals()
    app(prog_name="sbus-feed")


def _feed_netlink(signals: int, address: str | None, scope: Scope | None, namespace: str | None, receive_bytes: int) -> None:
    """Run the netlink feed until a signal ends it."""
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(contextlib.closing(Kernel(namespace, receive_bytes)))
        publisher = stack.enter_context(contextlib.closing(BusPublisher.connect(address, scope, REQUEST, _log)))
        keys = PublishedKeys()
        bus = Bus.connect(address, scope=scope, timeout=None, reconnect=True)
        stack.enter_context(contextlib.closing(StoredValues(bus, keys, _log, namespace=namespace, request=REQUEST)))
        feed = stack.enter_context(contextlib.closing(NetlinkFeed(kernel, publisher, _log, _ready, namespace=namespace, keys=keys)))
        feed.run(signals)


def _feed_journal(
    signals: int, publisher: CheckedPublisher, directory: Path | None, file: CursorFile, start: StartPosition, *, rate: int
) -> None:
    """Run the journal feed until a signal ends it."""
    bound_memory()
    with contextlib.closing(publisher), contextlib.closing(JournalReader(directory)) as reader:
        publisher.open()
        JournalFeed(reader, publisher, file, _log, _ready, start=start, rate=rate).run(signals)


def _feed_udev(signals: int, address: str | None, scope: Scope | None, subsystems: Sequence[str], receive_bytes: int, *, rate: int) -> None:
    """Run the udev feed until a signal ends it."""
    source = Udev(subsystems, receive_bytes)
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(contextlib.closing(BusPublisher.connect(address, scope, udev_feed.REQUEST, _log)))
        keys = PublishedKeys((HEAD,))
        bus = Bus.connect(address, scope=scope, timeout=None, reconnect=True)
        place = {"request": udev_feed.REQUEST, "stream": udev_feed.STREAM}
        values = StoredValues(bus, keys, _log, namespace=None, patterns=udev_feed.PRESENT_KEYS, **place)
        stack.enter_context(contextlib.closing(values))
        feed = stack.enter_context(contextlib.closing(udev_feed.UdevFeed(source, publisher, _log, _ready, rate=rate, keys=keys)))
        feed.run(signals)


def _subsystems(names: Sequence[str]) -> Sequence[str]:
    """Return the names of subsystems. Raises BadParameter."""
    for name in names:
        if not 0 < len(name.encode()) <= _SUBSYSTEM_BYTES or "/" in name or not name.isprintable():
            raise typer.BadParameter(f"invalid subsystem {name!r}: must be a name such as block, see ls /sys/class /sys/bus")
    if len(names) > _SUBSYSTEMS_MOST:
        raise typer.BadParameter(f"too many subsystems: {len(names)}, at most {_SUBSYSTEMS_MOST}")
    return names


def _feed_state(
    name: Literal["systemd", "logind"],
    address: str | None,
    scope: Scope | None,
    dbus_address: str | None,
    rate: int,
    *,
    has_addresses: bool = False,
) -> None:
    """Run the feed of units or of sessions until a signal ends it."""
    from sbus_services.feeds.dbus.program import Buses, run_state_feed  # noqa: PLC0415 - the other feeds need no event loop

    run_state_feed(name, Buses(address, scope, dbus_address), _log, _ready, rate=rate, has_addresses=has_addresses)


def _feed_signals(address: str | None, scope: Scope | None, dbus_address: str | None, config: Path | None, *, is_check: bool) -> None:
    """Run the feed of D-Bus signals until a signal of the kernel ends it, or only check its configuration."""
    from sbus_programs.config.feed_dbus import DBusFeedSettings  # noqa: PLC0415 - the other feeds have no configuration
    from sbus_services.feeds.dbus.program import Buses, run_signal_feed  # noqa: PLC0415

    main_file = config or default_main_file("feed-dbus.toml", user_bus=scope == "user")

    def load() -> DBusFeedSettings:
        return load_settings(main_file, DBusFeedSettings, required=config is not None)

    if is_check:
        check_configuration("sbus-feed", main_file, load, unit="sbus-feed@dbus.service")
    else:
        run_signal_feed(load(), Buses(address, scope, dbus_address), _log, _ready)


def _run(name: str, feed: Callable[[int], None]) -> None:
    """Run a feed; it ends with a status and at most one line. *feed* gets a descriptor that is readable when a signal ends it."""
    permanent = (AccessCheckError, MissingLibraryError)
    try:
        with failing_with_status("sbus-feed", *permanent, doing=name), WatchedSignals(dict.fromkeys(ENDING, _interrupt)) as signals:
            feed(signals.fileno())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Interrupt a feed, and let no further signal interrupt its end."""
    ignore_ending_signals()
    raise KeyboardInterrupt


def _kept_cursor() -> Path | None:
    """Return the cursor file of a service, None outside of one. Source: systemd.exec(5), StateDirectory=."""
    folders = os.environ.get("STATE_DIRECTORY", "")
    return Path(folders.split(":")[0]) / "journal.cursor" if folders else None


def _ready(status: str) -> None:
    """Notify the service manager, if there is one, that the feed is ready."""
    try:
        with contextlib.closing(ServiceManager.of_environment()) as manager:
            manager.deliver(f"READY=1\nSTATUS={status}")
    except OSError as wrong:
        _log(f"cannot notify the service manager: {wrong}")


def _log(line: str) -> None:
    """Write one line to standard error, which is the journal for a service."""
    # A line that is lost must not end the feed; the counters in net/snapshot/end contain the same facts.
    write_errors(f"sbus-feed: {line}\n")
