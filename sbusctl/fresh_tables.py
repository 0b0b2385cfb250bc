"""Brings the tables up to date for ``sbusctl report --now``: closes the recorder's segment and runs sbus-pipeline. Spec: sbusctl(1).

The record and the tables of the system belong to users of services, so systemd runs the pipeline for them. For other directories it runs as
the calling user.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sbus import NoBus, NoRecipient, RemoteError, RemoteRefusal
from sbus.bus_socket import SYSTEM_ADDRESS
from sbus.errors import sbusctl
from sbus.protocol.errors import SbusError
from sbus_archive.storage.location import ArchivePath
from sbusctl.errors import print_error
from sbusctl.output import visible
from sbusctl.settings import Settings

ARCHIVE = Path("/var/lib/sbus-recorder/archive")
TABLES = Path("/var/lib/sbus-pipeline")

RECORDER = "sbus-recorder.service"
PIPELINE = "sbus-pipeline.service"
COMMAND = "recorder/close"

CLOSING_SECONDS = 60.0
"""Maximum time until the recorder's segment is in the archive."""

STEP_SECONDS = 0.5
"""Interval between updates of the progress."""

JOB_SECONDS = 90.0
"""Maximum time for which systemd may not respond, or may not begin to start the pipeline; after that, the limit of its unit holds."""

PIPELINE_SECONDS = 6 * 3_600.0
"""Maximum run time of the pipeline if it runs as the calling user; as TimeoutStartSec= of its unit."""

_START = f"Start it with: systemctl enable --now {RECORDER}"
_SYSTEMCTL_SECONDS = 30.0


class FreshTablesError(SbusError):
    """The tables cannot be brought up to date; the text says what to do next."""


@dataclass(frozen=True, slots=True)
class Status:
    """A line on standard error that shows the current step, on a terminal only."""

    def show(self, words: str) -> None:
        """Replace the line."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{visible(words)[:78]}")
            sys.stderr.flush()

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Remove the line at the end of the block."""
        try:
            yield
        finally:
            if sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def refresh_tables(settings: Settings, archive: Path, tables: ArchivePath) -> None:
    """Add everything to *tables* that the recorder of the selected bus has recorded until now into *archive*.

    Raises:
        FreshTablesError: this user may not do that, nothing was recorded, or the pipeline fails.
    """
    if is_system := (archive, tables) == (ARCHIVE, TABLES):
        if os.geteuid() != 0:
            raise FreshTablesError(
                "--now needs root here, because the record and its tables belong to users of services. Run: sudo sbusctl report --now; "
                "or name directories of your own with --archive and --tables"
            )
    elif archive == ARCHIVE or tables == TABLES:
        raise FreshTablesError("--now needs both --archive and --tables, or neither: tables belong to one archive")
    status = Status()
    with status.cleared():
        status.show("closing the current segment of the record")
        recording = _how_to_record(settings, archive)
        omission = _close_segment(settings, archive, recording)
        if not has_segments(archive):
            raise FreshTablesError(_why_nothing_is_recorded(archive, omission, recording, is_system=is_system))
        if omission is not None and (is_system or omission.is_failure):
            print_error(f"warning: the report ends with the last complete segment: {omission.reason}")
        if is_system:
            _run_unit(status)
            return
    _run_program(archive, tables)


def has_segments(archive: Path) -> bool:
    """Return whether the index of *archive* has an entry."""
    with contextlib.suppress(OSError):
        return any(name.endswith(".json") and not name.startswith(".") for name in os.listdir(archive / "index"))
    return False


@dataclass(frozen=True, slots=True)
class _Omission:
    """Why the archive does not have the last minutes."""

    reason: str
    is_failure: bool = False
    """Whether a recorder failed. Otherwise the archive may simply not be that of a recorder on this bus."""


def _how_to_record(settings: Settings, archive: Path) -> str:
    """Return the sentence that says how to record the selected bus: only the system bus has a unit for that."""
    try:
        address = settings.bus_address()
    except SbusError:
        address = SYSTEM_ADDRESS
    if archive != ARCHIVE:
        return f"Record with: {sbusctl(address)} record --archive {archive}"
    if address != SYSTEM_ADDRESS:
        return f"{archive} is the archive of the system bus; name others with --archive and --tables"
    return _START


def _close_segment(settings: Settings, archive: Path, recording: str) -> _Omission | None:
    """Ask the recorder to close its segment. Return why the archive does not have the last minutes, None if it has them."""
    try:
        with settings.connect() as bus:
            answer = json.loads(bus.call(COMMAND, timeout=CLOSING_SECONDS))
            written = Path(answer["archive"])
    except NoRecipient:
        return _Omission(f"no recorder runs on this bus. {recording}")
    except (NoBus, RemoteRefusal) as error:
        return _Omission(str(error))
    except SbusError as error:
        # The recorder of another user refuses it.
        is_refused = isinstance(error, RemoteError) and "may not call" in error.words
        return _Omission(f"the recorder did not close its segment: {error}", is_failure=not is_refused)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _Omission("the response of the recorder is invalid; check the version of sbus-recorder", is_failure=True)
    return None if written == archive else _Omission(f"the recorder writes to {written}; name it with --archive")


def _why_nothing_is_recorded(archive: Path, omission: _Omission | None, recording: str, *, is_system: bool) -> str:
    """Return why *archive* has no segments, and what to do; *recording* says how to begin."""
    if not is_system:
        return f"nothing is recorded in {archive}. {recording}"
    unit = _properties(RECORDER)
    if unit.get("LoadState") == "not-found":
        return "nothing is recorded: the package sbus-recorder is not installed. Install it, then run this command again"
    if unit.get("ActiveState") in {"failed", "activating"}:
        reason = _last_line(RECORDER) or f"see journalctl -u {RECORDER}"
        return f"nothing is recorded: {RECORDER} does not start: {reason}. Then run: systemctl restart {RECORDER}"
    if unit.get("ActiveState") != "active":
        return f"nothing is recorded: {RECORDER} does not run. {_START}; later run this command again"
    return f"nothing is recorded: {omission.reason if omission else f'see journalctl -u {RECORDER}'}"


def _run_unit(status: Status) -> None:
    """Run the pipeline as its unit, and show its status. Raises FreshTablesError."""
    if _properties(PIPELINE).get("ActiveState") == "activating":
        # A run of the timer, which may have looked for segments before the last one was there.
        _start_unit(status)
    if not _start_unit(status):
        reason = _properties(PIPELINE).get("StatusText") or _last_line(PIPELINE) or f"see journalctl -u {PIPELINE}"
        raise FreshTablesError(f"{PIPELINE} failed: {reason}")


def _start_unit(status: Status) -> bool:
    """Start the unit and wait for its end; return whether it succeeded. Raises FreshTablesError."""
    try:
        process = subprocess.Popen(
            ["systemctl", "start", PIPELINE], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError:
        _no_systemd("systemctl is not installed")
    try:
        said = _followed(process, status)
    except BaseException:
        process.kill()  # the job goes on without it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STEP_SECONDS)
        if process.stderr is not None:
            process.stderr.close()
        raise
    if process.returncode and not _properties(PIPELINE).get("ActiveState"):
        _no_systemd(said.decode("utf-8", "replace").strip().partition("\n")[0])
    return process.returncode == 0


def _followed(process: subprocess.Popen[bytes], status: Status) -> bytes:
    """Return the error output of systemctl when it has ended. Raises FreshTablesError after JOB_SECONDS without a start of the unit."""
    end = time.monotonic() + JOB_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=STEP_SECONDS)[1]
        unit = _properties(PIPELINE)
        if unit.get("ActiveState") in {"activating", "deactivating"}:
            end = time.monotonic() + JOB_SECONDS
        elif time.monotonic() > end:
            reason = "systemd did not begin to start it; see: systemctl list-jobs" if unit else "systemd did not respond"
            raise FreshTablesError(f"{PIPELINE} did not start within {JOB_SECONDS:g} s: {reason}")
        status.show(unit.get("StatusText") or "computing the tables")


def _no_systemd(reason: str) -> NoReturn:
    """Raise FreshTablesError: systemd does not run here."""
    raise FreshTablesError(f"cannot start {PIPELINE}: {reason}. Run sbus-pipeline as the user sbus-pipeline, then sbusctl report")


def _properties(unit: str) -> dict[str, str]:
    """Return the properties of *unit* that are used here; none if systemd does not respond."""
    arguments = ["systemctl", "show", "--property=LoadState,ActiveState,StatusText", unit]
    try:
        shown = subprocess.run(arguments, capture_output=True, text=True, errors="replace", timeout=_SYSTEMCTL_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def _last_line(unit: str) -> str:
    """Return the last line that the program of *unit* has logged, without its name and final period; empty if there is none."""
    name = unit.removesuffix(".service")
    arguments = ["journalctl", f"--unit={unit}", f"--identifier={name}", "--output=cat", "--lines=1", "--no-pager", "--quiet"]
    try:
        said = subprocess.run(arguments, capture_output=True, text=True, errors="replace", timeout=_SYSTEMCTL_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.strip().removeprefix(f"{name}: ").rstrip(".")


def _run_program(archive: Path, tables: ArchivePath) -> None:
    """Run the pipeline as this user; it shows its progress and its error itself. Raises FreshTablesError."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "sbus_archive.pipeline", "--archive", str(archive), "--tables", str(tables)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PIPELINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FreshTablesError(f"sbus-pipeline was killed: it ran longer than {PIPELINE_SECONDS:g} s") from None
    if done.returncode:
        raise FreshTablesError(f"sbus-pipeline failed after {time.monotonic() - begun:.0f} s; its message is above")
