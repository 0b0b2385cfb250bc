"""What ``sbusctl report --now`` does before it writes the page, and what it advises if that fails; systemd is replaced by programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sbus import Bus, CallTimeout, NoRecipient, RemoteError, RemoteRefusal
from sbus.protocol.errors import ErrorCode, SbusError
from sbusctl import fresh_tables
from sbusctl.fresh_tables import COMMAND, PIPELINE, RECORDER, FreshTablesError, has_segments, refresh_tables
from sbusctl.settings import Settings
from tests.support.records import message
from tests.support.traffic import deliver
from tools.stage import ROOT

_SYSTEMCTL = """#!/bin/sh
for unit; do :; done
echo "$*" >>{folder}/calls
case $1 in
    show) cat {folder}/$unit 2>/dev/null;;
    start) . {folder}/start;;
esac
"""
_JOURNALCTL = "#!/bin/sh\ncat {folder}/journal\n"


class Machine:
    """Programs that answer as systemctl(1) and journalctl(1) do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive, self.tables = folder / "archive", folder / "tables"
        for name, text in (("systemctl", _SYSTEMCTL), ("journalctl", _JOURNALCTL)):
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text.format(folder=folder))
            program.chmod(0o755)
        self.start_does("exit 0")
        (folder / "journal").touch()

    def unit(self, name: str, state: str, load: str = "loaded", status: str = "") -> None:
        """Give the unit *name* these properties."""
        (self.folder / name).write_text(f"LoadState={load}\nActiveState={state}\nStatusText={status}\n")

    def start_does(self, script: str) -> None:
        """Have ``systemctl start`` run *script*."""
        (self.folder / "start").write_text(script + "\n")

    def starts(self) -> list[str]:
        """Return the units that were started."""
        calls = self.folder / "calls"
        return [line.split()[1] for line in calls.read_text().splitlines() if line.startswith("start ")] if calls.exists() else []

    def refresh(self) -> None:
        """Do what the command does, without a bus."""
        refresh_tables(Settings(address=str(self.folder / "nowhere")), self.archive, self.tables)

    def failure(self) -> str:
        """Return the error of the command."""
        with pytest.raises(FreshTablesError) as caught:
            self.refresh()
        return str(caught.value)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose system directories are in a temporary directory."""
    made = Machine(tmp_path)
    monkeypatch.setattr(fresh_tables, "ARCHIVE", made.archive)
    monkeypatch.setattr(fresh_tables, "TABLES", made.tables)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.defpath}")
    return made


def test_other_users_are_sent_to_root_or_to_their_own_directories(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = machine.failure()
    assert said.startswith("--now needs root here, because the record and its tables belong to users of services.")
    assert "sudo sbusctl report --now; or name directories of your own with --archive and --tables" in said


def test_directories_of_the_system_are_not_mixed_with_others(machine: Machine, tmp_path: Path) -> None:
    machine.tables = tmp_path / "mine"
    assert machine.failure() == "--now needs both --archive and --tables, or neither: tables belong to one archive"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "load", "says"),
    [
        ("inactive", "not-found", "the package sbus-recorder is not installed. Install it, then run this command again"),
        ("inactive", "loaded", f"{RECORDER} does not run. Start it with: systemctl enable --now {RECORDER}; later run this command again"),
        ("failed", "loaded", f"{RECORDER} does not start: pyarrow is not installed. Run X. Then run: systemctl restart {RECORDER}"),
        ("active", "loaded", "cannot connect to {folder}/nowhere: no such socket"),
    ],
)
def test_a_machine_without_a_record_says_what_to_do(machine: Machine, state: str, load: str, says: str) -> None:
    machine.unit(RECORDER, state, load)
    (machine.folder / "journal").write_text("sbus-recorder: pyarrow is not installed. Run X\n")
    assert machine.failure().startswith(f"nothing is recorded: {says.format(folder=machine.folder)}")
    assert machine.starts() == []


@pytest.mark.slow
def test_the_report_of_a_stopped_recorder_ends_with_its_last_segment(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    deliver(machine.archive, "alpha", [message(1)])
    assert has_segments(machine.archive)
    machine.unit(PIPELINE, "inactive")
    machine.refresh()
    assert machine.starts() == [PIPELINE]
    assert capsys.readouterr().err.startswith("sbusctl: warning: the report ends with the last complete segment: cannot connect to ")


@pytest.mark.slow
def test_a_run_of_the_timer_is_followed_by_another(machine: Machine) -> None:
    """It may have looked for segments before the last one was there."""
    deliver(machine.archive, "alpha", [message(1)])
    machine.unit(PIPELINE, "activating")
    machine.refresh()
    assert machine.starts() == [PIPELINE] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "journal", "says"),
    [
        ("Spark needs Java", "", "Spark needs Java"),
        ("", "sbus-pipeline: PyArrow is not installed.", "PyArrow is not installed"),
        ("", "", f"see journalctl -u {PIPELINE}"),
    ],
)
def test_the_error_of_the_pipeline_is_shown(machine: Machine, status: str, journal: str, says: str) -> None:
    deliver(machine.archive, "alpha", [message(1)])
    machine.unit(PIPELINE, "failed", status=status)
    (machine.folder / "journal").write_text(journal)
    machine.start_does("sleep 1; exit 1")
    assert machine.failure() == f"{PIPELINE} failed: {says}"


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [True, False])
def test_without_systemd_it_names_the_program(machine: Machine, is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(machine.archive, "alpha", [message(1)])
    machine.start_does("echo 'System has not been booted with systemd' >&2; exit 1")
    reason = "System has not been booted with systemd"
    if not is_installed:
        monkeypatch.setenv("PATH", str(machine.folder / "empty"))
        reason = "systemctl is not installed"
    assert machine.failure() == f"cannot start {PIPELINE}: {reason}. Run sbus-pipeline as the user sbus-pipeline, then sbusctl report"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reason"), [("inactive", "systemd did not begin to start it; see: systemctl list-jobs"), ("", "systemd did not respond")]
)
def test_a_start_that_does_not_begin_has_a_limit(machine: Machine, answer: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(machine.archive, "alpha", [message(1)])
    monkeypatch.setattr(fresh_tables, "JOB_SECONDS", 0.1)
    if answer:
        machine.unit(PIPELINE, answer)
    machine.start_does("exec sleep 600")
    assert machine.failure() == f"{PIPELINE} did not start within 0.1 s: {reason}"


@pytest.mark.slow
def test_the_pipeline_of_a_user_has_the_limit_of_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (ROOT / "units" / "system" / PIPELINE).read_text()
    assert f"TimeoutStartSec={fresh_tables.PIPELINE_SECONDS / 3_600:g}h" in unit.splitlines()
    deliver(tmp_path / "archive", "alpha", [message(1)])
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(fresh_tables, "PIPELINE_SECONDS", 0.1)
    with pytest.raises(FreshTablesError, match=r"sbus-pipeline was killed: it ran longer than 0\.1 s"):
        refresh_tables(Settings(address=str(tmp_path / "nowhere")), tmp_path / "archive", tmp_path / "tables")


def test_an_archive_of_a_user_without_segments_says_how_to_record(machine: Machine, tmp_path: Path) -> None:
    machine.archive, machine.tables = tmp_path / "r", tmp_path / "t"
    assert (
        machine.failure()
        == f"nothing is recorded in {tmp_path}/r. Record with: sbusctl -a {machine.folder}/nowhere record --archive {tmp_path}/r"
    )


@pytest.mark.parametrize(
    ("settings", "archive", "says"),
    [
        (Settings(), fresh_tables.ARCHIVE, f"Start it with: systemctl enable --now {RECORDER}"),
        (Settings(), Path("/a"), "Record with: sbusctl record --archive /a"),
        (Settings(scope="user"), Path("/a"), "Record with: sbusctl --user record --archive /a"),
        (Settings(address="/s"), Path("/a"), "Record with: sbusctl -a /s record --archive /a"),
        (
            Settings(scope="user"),
            fresh_tables.ARCHIVE,
            f"{fresh_tables.ARCHIVE} is the archive of the system bus; name others with --archive and --tables",
        ),
    ],
)
def test_a_bus_without_a_recorder_says_how_to_record_it(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, archive: Path, says: str
) -> None:
    class Unserved(Settings):
        def connect(self, timeout: float = 0, *, pace: bool = False, reconnect: bool = False) -> Bus:
            raise NoRecipient("recorder/close")

    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setattr(fresh_tables, "has_segments", lambda _archive: False)
    monkeypatch.setattr(fresh_tables, "_properties", lambda _unit: {"ActiveState": "active"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tables = fresh_tables.TABLES if archive == fresh_tables.ARCHIVE else Path("/t")
    with pytest.raises(FreshTablesError) as caught:
        refresh_tables(Unserved(settings.scope, settings.address), archive, tables)
    assert str(caught.value).endswith(f". {says}")


class Refusing(Settings):
    """A bus on which every connection fails with ``error``."""

    error: SbusError

    def connect(self, timeout: float = 0.0, *, pace: bool = False, reconnect: bool = False) -> Bus:
        """Raise the error."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "warning"),
    [
        (RemoteError(COMMAND, "recording is suspended: full"), "'recorder/close' failed: recording is suspended: full"),
        (CallTimeout(COMMAND, 60.0), "the response to 'recorder/close' took longer than 60 s"),
        (RemoteError(COMMAND, "user 1000 may not call recorder/close"), None),
        (RemoteRefusal(ErrorCode.EPERM, "a rule"), None),
        (NoRecipient(COMMAND), None),
    ],
)
def test_directories_of_a_user_may_be_those_of_no_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: SbusError, warning: str | None
) -> None:
    """Only a recorder that fails is reported: another one may record the bus into another archive."""
    deliver(tmp_path / "archive", "alpha", [message(1)])
    run: list[Path] = []
    monkeypatch.setattr(fresh_tables, "_run_program", lambda archive, _tables: run.append(archive))
    settings = Refusing()
    settings.error = error
    refresh_tables(settings, tmp_path / "archive", tmp_path / "tables")
    assert run == [tmp_path / "archive"]
    said = f"sbusctl: warning: the report ends with the last complete segment: the recorder did not close its segment: {warning}\n"
    assert capsys.readouterr().err == ("" if warning is None else said)
