"""A reload applies the whole configuration, or keeps the previous one."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sbus.protocol.controls import STATS
from sbus_programs.config.configuration import Configuration
from sbus_programs.config.loading import load_configuration
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.daemon.options import Options
from sbusd.daemon.reload import Reloader, changed_keys
from tests.support.in_process_bus import InProcessBus, MakeBus
from tests.support.wire import error_code

ALICE = 1_000


class Setup:
    """A bus with a file, and its reloader."""

    def __init__(self, make_bus: MakeBus, file: Path, text: str = "") -> None:
        self.file = file
        self.write(text)
        configuration = load_configuration(file)
        self.bus: InProcessBus = make_bus(configuration.settings)
        self.reloader = Reloader(Options(config_file=file), configuration, self.bus.broker, self.bus.journal)

    def write(self, text: str) -> None:
        """Write the file."""
        self.file.write_text(text)

    def reload(self, text: str) -> None:
        """Write the file, and reload it."""
        self.write(text)
        self.reloader.reload()


@pytest.fixture
def setup(make_bus: MakeBus, tmp_path: Path) -> Setup:
    """A bus with an empty file."""
    return Setup(make_bus, tmp_path / "sbusd.toml")


DENIAL = '[[policy]]\nkeys = "a"\nsubscribe = "deny"\n'


def test_a_reload_applies_rules(setup: Setup) -> None:
    client = setup.bus.client(uid=ALICE)
    setup.reload(DENIAL)
    client.subscribe(b"a")
    (reported,) = client.barrier()
    assert error_code(reported) == "EPERM"
    reloaded = setup.bus.recorded()[0]
    assert (reloaded.message.name, reloaded.facts["files"]) == ("reloaded", str(setup.file))


@pytest.mark.parametrize("wrong", ["x =", "nonsense = 1", '[[policy]]\nkeys = "b"\n'])
def test_an_invalid_file_changes_nothing_and_is_recorded(setup: Setup, wrong: str) -> None:
    setup.reload(DENIAL)
    setup.reload(wrong + "\n" + "allowed_users = [1]\n")
    client = setup.bus.client(uid=ALICE)
    client.subscribe(b"a")
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]
    failed = setup.bus.recorded()[1]
    assert failed.message.name == "reload-failed"
    assert str(failed.facts["reason"]).startswith(f"{setup.file}: ")


def test_the_bus_goes_on_while_the_files_are_read(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory service that knows the users in the files can take seconds."""
    is_known = Event()

    def slow(*arguments: Any, **options: Any) -> Configuration:
        assert is_known.wait(60)
        return load_configuration(*arguments, **options)

    monkeypatch.setattr("sbusd.daemon.reload.load_configuration", slow)
    setup.reloader.start_thread(setup.bus.switch)
    client = setup.bus.client(uid=ALICE)
    setup.write(DENIAL)
    setup.reloader.request()
    client.subscribe(b"a")
    assert client.barrier() == []
    assert not setup.reloader.finish()
    is_known.set()
    setup.bus.switch.run(60_000)  # until the thread reports
    assert setup.reloader.finish()
    client.subscribe(b"a")
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]


def test_without_a_thread_a_reload_changes_nothing_and_is_recorded(setup: Setup) -> None:
    setup.write(DENIAL)
    setup.reloader.request()
    assert setup.reloader.finish()
    assert [record.message.name for record in setup.bus.recorded()] == ["internal-error"]


def test_a_removed_file_changes_nothing(setup: Setup) -> None:
    setup.file.unlink()
    setup.reloader.reload()
    assert [record.message.name for record in setup.bus.recorded()] == ["reload-failed"]


def test_a_defect_changes_nothing_and_is_recorded(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("sbusd.daemon.reload.load_configuration", fail)
    setup.reloader.reload()
    (record,) = setup.bus.recorded()
    assert record.message.name == "internal-error"
    assert "ZeroDivisionError" in record.trace


def test_users_of_the_command_line_are_still_admitted(make_bus: MakeBus, tmp_path: Path) -> None:
    setup = Setup(make_bus, tmp_path / "sbusd.toml")
    reloader = Reloader(
        Options(config_file=setup.file, allowed_users=(ALICE,)),
        Configuration(DaemonSettings()),
        setup.bus.broker,
        setup.bus.journal,
    )
    setup.write("allowed_users = [7]")
    client = setup.bus.client(uid=ALICE)
    reloader.reload()
    assert client.barrier() == []


def test_a_required_restart_is_recorded_until_the_key_is_restored(setup: Setup) -> None:
    setup.reload('separator = "."\n[limits]\nbatch_packets = 3\n')
    setup.reload('[limits]\nbatch_packets = 3\n[log]\nlevel = "warning"')
    setup.reload('[log]\nlevel = "debug"')
    assert [record.facts.get("keys") for record in setup.bus.recorded()] == [
        None,
        "separator, limits.batch_packets",
        "limits.batch_packets",
        None,
    ]


def test_only_changed_keys_need_a_restart() -> None:
    assert changed_keys(DaemonSettings(), DaemonSettings(admins=(1,))) == []
    assert changed_keys(DaemonSettings(), DaemonSettings(limits=LimitSettings(key_bytes=99))) == ["limits.key_bytes"]


def _drop_in(setup: Setup) -> Path:
    """Return the place of a drop-in of the setup's file, whose folder is there."""
    folder = setup.file.with_name(f"{setup.file.name}.d")
    folder.mkdir()
    return folder / "50-lab.toml"


def test_a_broken_drop_in_denies_its_own_keys_only(setup: Setup) -> None:
    drop_in = _drop_in(setup)
    drop_in.symlink_to(setup.file.with_name("rules"))
    drop_in.resolve().write_text('[[policy]]\nkeys = "lab/"\nsubscribe = "allow"\n')
    setup.reload("")
    client = setup.bus.client(uid=ALICE)
    client.subscribe(b"lab/x")
    assert client.barrier() == []
    drop_in.resolve().unlink()
    setup.reload(DENIAL)
    client = setup.bus.client(uid=ALICE)
    for pattern in (b"lab/x", b"a", b"b"):
        client.subscribe(pattern)
    reported = client.barrier()
    assert [error_code(packet) for packet in reported] == ["EPERM", "EPERM"]
    assert b"a fault in 50-lab.toml" in reported[0]
    assert [record.message.name for record in setup.bus.recorded()][:3] == ["reloaded", "reloaded", "configuration-fault"]
    (fault,) = setup.reloader.faults
    assert setup.bus.recorded()[2].facts["reason"] == str(fault)
    counted = setup.bus.client().ask_json(STATS)["control"]
    assert isinstance(counted, dict)
    assert counted["configuration_faults"] == 1
    drop_in.unlink()
    setup.reload("")
    assert setup.reloader.faults == ()


def test_a_broken_drop_in_admits_no_other_user(setup: Setup) -> None:
    drop_in = _drop_in(setup)
    drop_in.write_text("allowed_users = [7]\n")
    setup.reload("")
    drop_in.unlink()
    drop_in.symlink_to("nowhere")
    setup.reload("")
    refusal, end = setup.bus.client(uid=ALICE).receive_all()[-2:]
    assert (error_code(refusal), end) == ("EACCES", b"")
    assert setup.bus.client(uid=7).barrier() == []


def test_a_reload_never_denies_everything(setup: Setup) -> None:
    """A bus that starts would have to. A running bus keeps its valid rules."""
    setup.reload(DENIAL)
    drop_in = _drop_in(setup)
    drop_in.mkdir()
    setup.reloader.reload()
    client = setup.bus.client(uid=ALICE)
    client.subscribe(b"a")
    client.subscribe(b"b")
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]
    failed = setup.bus.recorded()[1]
    assert failed.message.name == "reload-failed"
    assert str(failed.facts["reason"]).startswith(f"{drop_in}: not a regular file")


def test_a_removed_user_is_a_fault_but_not_a_failure(setup: Setup) -> None:
    setup.reload('admins = ["no-such-user"]\n' + DENIAL)
    assert [record.message.name for record in setup.bus.recorded()] == ["reloaded", "configuration-fault"]
