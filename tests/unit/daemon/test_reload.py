"""The configuration is read again: all of it holds, or what held before."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.config.faults import Configuration
from sbusd.config.loader import load_configuration
from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.daemon.options import Options
from sbusd.daemon.reload import Reloader, changed_keys
from sbusd.protocol.controls import STATS
from tests.support.parlour import MakeParlour, Parlour
from tests.support.wire import error_code

ALICE = 1_000


class Office:
    """A bus with a file, and its reloader."""

    def __init__(self, make_parlour: MakeParlour, file: Path, text: str = "") -> None:
        self.file = file
        self.write(text)
        configuration = load_configuration(file)
        self.parlour: Parlour = make_parlour(configuration.settings)
        self.reloader = Reloader(Options(config_file=file), configuration, self.parlour.broker, self.parlour.journal)

    def write(self, text: str) -> None:
        """Write the file."""
        self.file.write_text(text)

    def reload(self, text: str) -> None:
        """Write the file, and have it read."""
        self.write(text)
        self.reloader.reload()


@pytest.fixture
def office(make_parlour: MakeParlour, tmp_path: Path) -> Office:
    """A bus with an empty file."""
    return Office(make_parlour, tmp_path / "sbusd.toml")


DENIAL = '[[policy]]\nkeys = "a"\nsubscribe = "deny"\n'


def test_rules_hold_when_they_are_read(office: Office) -> None:
    guest = office.parlour.guest(uid=ALICE)
    office.reload(DENIAL)
    guest.subscribe(b"a")
    (told,) = guest.barrier()
    assert error_code(told) == "EPERM"
    reloaded = office.parlour.recorded()[0]
    assert (reloaded.message.name, reloaded.facts["files"]) == ("reloaded", str(office.file))


@pytest.mark.parametrize("wrong", ["x =", "nonsense = 1", '[[policy]]\nkeys = "b"\n'])
def test_a_wrong_file_changes_nothing_and_says_so(office: Office, wrong: str) -> None:
    office.reload(DENIAL)
    office.reload(wrong + "\n" + "allowed_users = [1]\n")
    guest = office.parlour.guest(uid=ALICE)
    guest.subscribe(b"a")
    assert [error_code(packet) for packet in guest.barrier()] == ["EPERM"]
    failed = office.parlour.recorded()[1]
    assert failed.message.name == "reload-failed"
    assert str(failed.facts["reason"]).startswith(f"{office.file}: ")


def test_a_file_that_is_gone_changes_nothing(office: Office) -> None:
    office.file.unlink()
    office.reloader.reload()
    assert [record.message.name for record in office.parlour.recorded()] == ["reload-failed"]


def test_a_defect_changes_nothing_and_is_seen(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("sbusd.daemon.reload.load_configuration", fail)
    office.reloader.reload()
    (record,) = office.parlour.recorded()
    assert record.message.name == "internal-error"
    assert "ZeroDivisionError" in record.trace


def test_users_of_the_command_line_are_still_admitted(make_parlour: MakeParlour, tmp_path: Path) -> None:
    office = Office(make_parlour, tmp_path / "sbusd.toml")
    reloader = Reloader(
        Options(config_file=office.file, allowed_users=(ALICE,)),
        Configuration(DaemonSettings()),
        office.parlour.broker,
        office.parlour.journal,
    )
    office.write("allowed_users = [7]")
    guest = office.parlour.guest(uid=ALICE)
    reloader.reload()
    assert guest.barrier() == []


def test_what_needs_a_restart_is_said_until_it_is_as_it_was(office: Office) -> None:
    office.reload('separator = "."\n[limits]\nbatch_packets = 3\n')
    office.reload('[limits]\nbatch_packets = 3\n[log]\nlevel = "warning"')
    office.reload('[log]\nlevel = "debug"')
    assert [record.facts.get("keys") for record in office.parlour.recorded()] == [
        None,
        "separator, limits.batch_packets",
        "limits.batch_packets",
        None,
    ]


def test_only_what_differs_needs_a_restart() -> None:
    assert changed_keys(DaemonSettings(), DaemonSettings(admins=(1,))) == []
    assert changed_keys(DaemonSettings(), DaemonSettings(limits=LimitSettings(key_bytes=99))) == ["limits.key_bytes"]


def _drop_in(office: Office) -> Path:
    """Return the place of a drop-in of the office's file, whose folder is there."""
    folder = office.file.with_name(f"{office.file.name}.d")
    folder.mkdir()
    return folder / "50-lab.toml"


def test_a_drop_in_that_breaks_closes_what_it_was_about_and_the_rest_holds(office: Office) -> None:
    drop_in = _drop_in(office)
    drop_in.symlink_to(office.file.with_name("rules"))
    drop_in.resolve().write_text('[[policy]]\nkeys = "lab/"\nsubscribe = "allow"\n')
    office.reload("")
    guest = office.parlour.guest(uid=ALICE)
    guest.subscribe(b"lab/x")
    assert guest.barrier() == []
    drop_in.resolve().unlink()
    office.reload(DENIAL)
    guest = office.parlour.guest(uid=ALICE)
    for pattern in (b"lab/x", b"a", b"b"):
        guest.subscribe(pattern)
    told = guest.barrier()
    assert [error_code(packet) for packet in told] == ["EPERM", "EPERM"]
    assert b"a fault in 50-lab.toml" in told[0]
    assert [record.message.name for record in office.parlour.recorded()][:3] == ["reloaded", "reloaded", "configuration-fault"]
    (fault,) = office.reloader.faults
    assert office.parlour.recorded()[2].facts["reason"] == str(fault)
    counted = office.parlour.guest().ask_json(STATS)["control"]
    assert isinstance(counted, dict)
    assert counted["configuration_faults"] == 1
    drop_in.unlink()
    office.reload("")
    assert office.reloader.faults == ()


def test_a_drop_in_that_breaks_lets_nobody_else_connect(office: Office) -> None:
    drop_in = _drop_in(office)
    drop_in.write_text("allowed_users = [7]\n")
    office.reload("")
    drop_in.unlink()
    drop_in.symlink_to("nowhere")
    office.reload("")
    refusal, end = office.parlour.guest(uid=ALICE).receive_all()[-2:]
    assert (error_code(refusal), end) == ("EACCES", b"")
    assert office.parlour.guest(uid=7).barrier() == []


def test_a_reload_never_denies_everything(office: Office) -> None:
    """A bus that starts would have to; one that runs has rules that are good."""
    office.reload(DENIAL)
    drop_in = _drop_in(office)
    drop_in.mkdir()
    office.reloader.reload()
    guest = office.parlour.guest(uid=ALICE)
    guest.subscribe(b"a")
    guest.subscribe(b"b")
    assert [error_code(packet) for packet in guest.barrier()] == ["EPERM"]
    failed = office.parlour.recorded()[1]
    assert failed.message.name == "reload-failed"
    assert str(failed.facts["reason"]).startswith(f"{drop_in}: cannot read it: Is a directory")


def test_a_user_who_is_gone_is_a_fault_and_no_failure(office: Office) -> None:
    office.reload('admins = ["nobody-is-called-this"]\n' + DENIAL)
    assert [record.message.name for record in office.parlour.recorded()] == ["reloaded", "configuration-fault"]
