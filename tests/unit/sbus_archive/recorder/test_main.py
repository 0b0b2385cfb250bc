"""The program, as a person or systemd starts it: its options, its one line for each mistake, its status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.recorder_fakes import recorded
from tests.support.tapped_bus import TappedBus, message_packet
from tools.stage import ROOT

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "sbus_archive.recorder.main"]
ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], env=ENV | env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "recorder.toml"
    file.write_text(
        f'archive = "{tmp_path}/archive"\nspool = "{tmp_path}/spool"\nhost = "alpha"\nsync_interval = "5ms"\nretention = "36525d"\n'
    )
    return file


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TappedBus]:
    with TappedBus(tmp_path / "bus") as bus:
        yield bus


def test_it_records_until_it_is_stopped(bus: TappedBus, config: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "--address", str(bus.path), "-C", str(config), "--verbose"]
    with subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        bus.accept()
        bus.tell(message_packet(b"k"))
        said: list[str] = []
        while not said or not said[-1].endswith("durable 2\n"):
            said.append(process.stderr.readline())
            assert said[-1], said
        process.send_signal(signal.SIGTERM)
        bus.end_when_asked()
        said += process.stderr.readlines()
        assert process.wait(60) == 0
    assert said[-1] == "sbus-recorder: stopped recording: 2 rows written in 1 files, 0 rows missing\n"
    assert any(line.startswith("sbus-recorder: started recording ") for line in said)
    assert [row.key for row in recorded(tmp_path / "archive")] == [None, "k"]


def test_a_configuration_is_checked(config: Path) -> None:
    done = run("--check", "-C", str(config))
    assert (done.returncode, done.stdout, done.stderr) == (0, "configuration is valid\n", "")
    config.write_text("disk_quotas = 1\n")
    done = run("--check", "-C", str(config))
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == f"sbus-recorder: {config}: disk_quotas: unknown key; did you mean disk_quota?\n"


def test_no_bus_is_one_line(config: Path, tmp_path: Path) -> None:
    done = run("-C", str(config), "--address", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbus-recorder: cannot connect to {tmp_path}/nowhere: no such socket")
    assert done.stderr.count("\n") == 1


def test_a_bus_that_does_not_let_it_listen_is_for_a_person(config: Path, tmp_path: Path) -> None:
    with TappedBus(tmp_path / "bus", refusal=b"EPERM not yours") as bus:
        accepting = bus.accept_soon()
        done = run("-C", str(config), "--address", str(bus.path))
        accepting.join(30)
    assert done.returncode == 78
    assert "cannot tap the bus at " in done.stderr


def test_a_folder_that_cannot_be_made_is_one_line(config: Path, tmp_path: Path, bus: TappedBus) -> None:
    (tmp_path / "archive").write_text("in the way")
    done = run("-C", str(config), "--address", str(bus.path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"sbus-recorder: {tmp_path}/archive: Not a directory"


def test_without_pyarrow_it_says_what_to_install(config: Path, tmp_path: Path) -> None:
    (tmp_path / "broken" / "pyarrow").mkdir(parents=True)
    (tmp_path / "broken" / "pyarrow" / "__init__.py").write_text("raise ModuleNotFoundError('pyarrow')")
    done = run("-C", str(config), PYTHONPATH=f"{tmp_path}/broken:{ROOT}")
    assert (done.returncode, done.stderr) == (
        78,
        "sbus-recorder: pyarrow is not installed. Install it with: pip install 'sbusd[recorder]'\n",
    )


@pytest.mark.parametrize("arguments", [("--system", "--user"), ("--colour",), ("x",)])
def test_wrong_options_are_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_host_name_of_another_recorder_is_for_a_person(config: Path, bus: TappedBus, tmp_path: Path) -> None:
    (tmp_path / "archive" / "hosts").mkdir(parents=True)
    mark = tmp_path / "archive" / "hosts" / "alpha.json"
    mark.write_text('{"id": "1", "machine": "other", "archive": "/a", "identity": "2"}')
    done = run("-C", str(config), "--address", str(bus.path))
    assert (done.returncode, done.stderr.count("\n")) == (os.EX_CONFIG, 1)
    assert done.stderr.startswith(f"sbus-recorder: {mark}: host alpha belongs to machine other with archive /a, id 1, machine identity 2; ")
