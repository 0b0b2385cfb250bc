"""The program sbus-ship(8)."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import socket
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_archive.optional_packages import how_to_install, use_local_packages
from sbus_archive.record.index import segment_of_entry
from sbus_archive.record.layout import is_host
from sbus_archive.record.shipped import LIST, ListHeader, ListWriter, OtherDestinationError
from sbus_archive.shipping.destination import EXPIRED_LIST, Expiry, IndexMerger, expired_list
from sbus_archive.shipping.log_messages import DATE, RETRIED, STARTED, STOPPED
from sbus_archive.shipping.service import Heartbeat, Shipper
from sbus_archive.shipping.upload import Uploader
from sbus_archive.storage.attempts import Attempts, UnsupportedClientError
from sbus_archive.storage.files import ExposedFolderError, LockHeldError, RecordError, lock_file, make_private
from sbus_archive.storage.location import ArchivePath, LocationError, RemotePath, endpoint_of, parse_location
from sbus_archive.storage.ownership import APPLICATION, HostTakenError, Owner, Ownership
from sbus_archive.storage.store import DifferentContentError, FileStore, store_of
from sbus_programs.config.files import default_main_file
from sbus_programs.config.recorder import load_recorder_settings
from sbus_programs.config.ship import ShipSettings, load_ship_settings
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbus_programs.program import run_configured
from sbus_programs.standard_error import fail
from sbus_programs.standard_output import print_line
from sbus_programs.systemd.log_records import ServiceLog
from sbus_programs.systemd.machine_identity import machine_identity
from sbus_programs.systemd.service_manager import ServiceManager
from sbus_programs.systemd.signals import EndingSignals
from sbus_programs.wall_clock import WallClock

_LOCK = ".lock"

_DATE = "date"
"""The file of the state in which the date survives a restart, see :mod:`sbus_programs.wall_clock`."""

_ADVICE = (
    "Give one of them another host in recorder.toml and ship.toml. If this machine replaces the other one, or has lost its list of shipped"
    " segments, run sbus-ship --claim once"
)
"""What to do if the name of this host belongs to another shipper."""

app = program_app("Copy the archive of sbus-recorder to an object store.", "sbus-ship")


class StateInUseError(SbusError):
    """Another shipper uses the same state."""


class StateOwnerError(SbusError):
    """The state belongs to another user."""


_FOR_ADMINISTRATORS = (
    LocationError, ExposedFolderError, HostTakenError, DifferentContentError, OtherDestinationError, StateOwnerError,
    UnsupportedClientError,
)  # fmt: skip
"""Errors that a restart cannot end. A ConfigError is one too."""


@app.command(cls=PlainCommand)
def ship(
    context: typer.Context,
    *,
    config: Annotated[Path | None, config_option("ship.toml")] = None,
    check: CheckOption = False,
    once: Annotated[bool, typer.Option("--once", help="Ship the segments that exist now, and exit.")] = False,
    claim: Annotated[bool, typer.Option("--claim", help="Claim the name of this host, also if another machine has it, and exit.")] = False,
    _version: VersionOption = False,
) -> None:
    """Copy the archive of sbus-recorder to an object store."""
    for name, is_given in (("check", check), ("once", once), ("claim", claim)):
        if is_given:
            require_only(context, f"--{name}", name, "config")
    main_file = config or default_main_file("ship.toml", user_bus=False)
    run_configured(
        "sbus-ship",
        main_file,
        lambda: _load(main_file, config),
        lambda loaded: _run(*loaded, once=once, claim=claim),
        is_check=check,
        permanent=_FOR_ADMINISTRATORS,
    )


def main() -> None:
    """Run the program. Exit status: 0; 1 after an error; 2 for invalid options; 78 if an administrator must act."""
    app(prog_name="sbus-ship")


def _load(main_file: Path, config: Path | None) -> tuple[ShipSettings, ArchivePath, str]:
    """Return the settings, the destination, and the name of this host. Raises ConfigError, LocationError."""
    settings = load_ship_settings(main_file, required=config is not None)
    return settings, _destination(settings), _host(settings, main_file.with_name("recorder.toml"))


def _destination(settings: ShipSettings) -> ArchivePath:
    """Return the destination. Raises LocationError."""
    if not settings.destination:
        raise LocationError("no destination: set destination in ship.toml, such as s3://BUCKET/PREFIX, see sbus-ship(8)")
    found = parse_location(settings.destination)
    if isinstance(found, Path) and not found.is_absolute():
        raise LocationError(f"invalid destination {settings.destination!r}: must be an absolute path or a URL")
    if found == Path(settings.archive):
        raise LocationError(f"invalid destination {settings.destination!r}: it is the archive itself")
    return found


def _host(settings: ShipSettings, recorder_file: Path) -> str:
    """Return the name of this host in the archive: by default that of the recorder. Raises ConfigError, LocationError."""
    host = settings.host or load_recorder_settings(recorder_file).host or socket.gethostname()
    if not is_host(host):
        raise LocationError(f"invalid host name {host!r} for an archive: set host in recorder.toml and ship.toml, see sbus-ship(8)")
    return host


def _run(settings: ShipSettings, destination: ArchivePath, host: str, *, once: bool, claim: bool) -> None:
    """Ship until a signal arrives, or only claim the name of the host."""
    use_local_packages()
    try:
        import pyarrow  # noqa: F401, PLC0415 - only to say in one line that it is missing
    except ModuleNotFoundError:
        fail("sbus-ship", f"pyarrow is not installed. Install it with: {how_to_install('recorder')}", os.EX_CONFIG)
    log, manager = ServiceLog("sbus-ship"), ServiceManager.of_environment()
    archive, state = Path(settings.archive), Path(settings.state)
    if not archive.is_dir():
        raise RecordError(archive, "not an archive: no such directory")
    _check_user(state)
    names = (LIST, EXPIRED_LIST, _DATE)
    make_private(state, (*names, _LOCK, *(f".{name}.tmp" for name in names)))
    heartbeat = Heartbeat(manager)
    with contextlib.ExitStack() as stack:
        stack.callback(manager.close)
        stack.callback(os.close, _lock(state))
        attempts = Attempts(lambda line: log.record(RETRIED, reason=line), progress=heartbeat.beat)
        store = _store(destination, attempts)
        done = stack.enter_context(contextlib.closing(ListWriter(state / LIST, _new_header(destination, host))))
        header = done.header or _new_header(destination, host)
        owner = Owner(header.id, socket.gethostname(), str(archive), machine_identity(APPLICATION))
        ownership = Ownership(store, host, owner, _ADVICE)
        if claim:
            ownership.take(len(done), by_force=True)
            print_line("sbus-ship", f"claimed host {host} in {destination}")
            return
        expired = stack.enter_context(contextlib.closing(expired_list(state / EXPIRED_LIST, header)))
        uploader = Uploader(archive, store, ownership, settings.retention, heartbeat.beat, since_ns=header.created)
        expiry = Expiry(store, done, expired, settings.retention)
        newest = max((segment.start_ns for name in done if (segment := segment_of_entry(name)) is not None), default=None)
        clock = WallClock(lambda line: log.record(DATE, reason=line), newest=newest, kept=state / _DATE)
        shipper = Shipper(
            archive,
            host,
            uploader,
            expiry,
            done,
            log=log,
            beat=heartbeat.beat,
            claim=lambda: ownership.take(len(done)),
            merger=IndexMerger(store, host, ownership.check, log, date=clock.date),
            clock=clock,
        )
        heartbeat.status = lambda: shipper.status(attempts.retries)
        signals = stack.enter_context(EndingSignals(shipper.stop))
        log.record(STARTED, archive=str(archive), host=host, destination=str(destination))
        manager.ready("starting")
        shipper.run(settings.interval, once=once, signals=signals.fileno())
        manager.stopping()
        counts = shipper.counts
        log.record(STOPPED, segments=counts.shipped, bytes=uploader.bytes, waiting=counts.waiting, lost=counts.lost)
        if once and counts.unreadable:
            raise RecordError(archive, f"damaged segments that were not shipped: {counts.unreadable}")


def _new_header(destination: ArchivePath, host: str) -> ListHeader:
    """Return the first line of a new list."""
    endpoint = endpoint_of(os.environ) if isinstance(destination, RemotePath) and destination.scheme == "s3" else ""
    return ListHeader(str(destination), host, secrets.token_hex(16), endpoint, time.time_ns())


def _check_user(state: Path) -> None:
    """Refuse to write files that the user of the service could not write. Raises StateOwnerError, OSError."""
    try:
        owner = state.stat().st_uid
    except FileNotFoundError:
        return
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        raise StateOwnerError(f"{state}: owned by user {printable(name, 64)}. Run sbus-ship as this user, see sbus-ship(8)")


def _store(destination: ArchivePath, attempts: Attempts) -> FileStore:
    """Return the store of the destination, with *attempts* that report to the log."""
    if not isinstance(destination, RemotePath):
        return store_of(destination)
    from sbus_archive.storage.objects import ObjectClient, ObjectStore, connect  # noqa: PLC0415 - only remote stores need it

    scheme, authority = destination.scheme, destination.authority
    return ObjectStore(destination, ObjectClient(partial(connect, scheme, authority), scheme, authority, attempts))


def _lock(state: Path) -> int:
    """Lock the state for this process, and return a descriptor. Raises StateInUseError, OSError."""
    try:
        return lock_file(state / _LOCK)
    except LockHeldError as error:
        raise StateInUseError(f"{state}: in use by another sbus-ship, process {error.holder}") from None


if __name__ == "__main__":
    main()
