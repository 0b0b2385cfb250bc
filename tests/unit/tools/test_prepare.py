"""tools/prepare on made-up machines: a PATH with chosen programs, and an apt-get that notes what it is asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.stage import ROOT

pytestmark = pytest.mark.slow

_PROGRAMS = (
    "sh",
    "id",
    "env",
    "mktemp",
    "rm",
    "tail",
    "make",
    "gcc",
    "g++",
    "pkg-config",
    "ip",
    "systemd-socket-activate",
    "useradd",
    "redis-server",
    "redis-cli",
    "openssl",
    "nats-server",
)
_TEST_PROGRAMS = (
    "socat",
    "strace",
    "mandoc",
    "man",
    "ps",
    "systemd-nspawn",
    "mmdebstrap",
    "unshare",
    "chromium",
    "node",
    "zsh",
    "fish",
    "prometheus",
)
_BENCH_PROGRAMS = ("dbus-daemon", "dbus-broker", "mosquitto", "npm")

_APT_GET = """#!/bin/sh
echo "$*" >>{log}
[ "$1" = install ] || exit 0
[ {works} = yes ] || {{ echo "E: no network" >&2; exit 100; }}
/bin/ln -sf /bin/true {folder}/socat
"""


class Machine:
    """A machine with all programs but some."""

    def __init__(self, folder: Path, without: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.log = folder / "apt.log"
        self.add_java("17.0.15")
        for name in (*_PROGRAMS, *_TEST_PROGRAMS, *_BENCH_PROGRAMS):
            found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
            if name not in without:
                # What this machine lacks is stood in for: nothing of it is run.
                (folder / name).symlink_to(found or "/bin/true")

    def add_java(self, version: str) -> None:
        """Add a java that is of this version and nothing else."""
        java = self.folder / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        java.chmod(0o755)

    def add_apt_get(self, *, works: bool = True) -> None:
        """Add an apt-get that brings socat, or fails."""
        script = self.folder / "apt-get"
        script.write_text(_APT_GET.format(log=self.log, folder=self.folder, works="yes" if works else "no"))
        script.chmod(0o755)

    def be_root(self) -> None:
        """Make id(1) say that the user is root."""
        self._be(0)

    def be_somebody(self) -> None:
        """Make id(1) say that the user is not root."""
        self._be(1000)

    def _be(self, uid: int) -> None:
        """Make id(1) print *uid*, regardless of the user who runs the tests."""
        (self.folder / "id").unlink()
        (self.folder / "id").write_text(f"#!/bin/sh\necho {uid}\n")
        (self.folder / "id").chmod(0o755)

    def prepare(self, mode: str) -> subprocess.CompletedProcess[str]:
        """Run tools/prepare."""
        env = {"PATH": str(self.folder), "TMPDIR": str(self.folder)}
        return subprocess.run(
            ["/bin/sh", str(ROOT / "tools/prepare"), mode], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    @property
    def asked(self) -> list[str]:
        """What apt-get was asked for."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.mark.parametrize("mode", ["run", "test", "bench", "package", "check"])
def test_nothing_is_printed_or_done_if_nothing_is_missing(tmp_path: Path, mode: str) -> None:
    machine = Machine(tmp_path)
    machine.add_apt_get()
    done = machine.prepare(mode)
    assert (done.returncode, done.stdout, done.stderr, machine.asked) == (0, "", "", [])


def test_only_missing_packages_are_installed_and_only_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("socat",))
    machine.add_apt_get()
    machine.be_root()
    done = machine.prepare("test")
    assert (done.returncode, done.stderr) == (0, "prepare: installing socat\n")
    assert machine.asked == ["update -qq", "install -y --no-install-recommends socat"]
    assert machine.prepare("test").stderr == ""
    assert len(machine.asked) == 2


@pytest.mark.parametrize(("version", "wants"), [("1.8.0_292", True), ("11.0.2", True), ("17", False), ("21.0.1", False), ("25", False)])
def test_a_java_too_old_for_spark_counts_as_missing(tmp_path: Path, version: str, wants: bool) -> None:
    machine = Machine(tmp_path)
    machine.add_apt_get()
    machine.add_java(version)
    machine.be_somebody()
    assert machine.prepare("run").stderr.endswith(" default-jre-headless\n") is wants


def test_packages_are_built_by_programs_of_their_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("mmdebstrap", "gcc", "socat"))
    machine.add_apt_get()
    machine.be_somebody()
    assert machine.prepare("package").stderr.endswith("apt-get install -y --no-install-recommends mmdebstrap\n")


def test_packages_for_the_bench_are_installed_only_for_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("dbus-broker",))
    machine.add_apt_get()
    machine.be_somebody()
    assert machine.prepare("bench").stderr.endswith("--no-install-recommends dbus-broker\n")
    assert machine.prepare("test").stderr == ""


def test_packages_for_tests_are_not_installed_for_running(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=_TEST_PROGRAMS)
    machine.add_apt_get()
    assert machine.prepare("run").stderr == ""
    assert machine.asked == []


def test_a_user_without_sudo_gets_the_command_to_type(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("socat", "systemd-socket-activate"))
    machine.add_apt_get()
    machine.be_somebody()
    done = machine.prepare("test")
    assert done.returncode == 1
    assert done.stderr == "prepare: as root, run: apt-get update && apt-get install -y --no-install-recommends systemd socat\n"
    assert machine.asked == []


def test_a_machine_without_apt_get_gets_a_list_of_missing_programs(tmp_path: Path) -> None:
    done = Machine(tmp_path, without=("g++",)).prepare("run")
    assert done.returncode == 1
    assert done.stderr == "prepare: this machine lacks, by Debian's names: g++; and it has no apt-get: install them your way\n"


def test_building_alone_installs_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("gcc",))
    machine.add_apt_get()
    done = machine.prepare("check")
    assert done.returncode == 1
    assert "apt-get install -y --no-install-recommends gcc" in done.stderr
    assert machine.asked == []


def test_a_failure_of_apt_get_is_shown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("socat",))
    machine.add_apt_get(works=False)
    machine.be_root()
    done = machine.prepare("test")
    assert done.returncode == 1
    assert "E: no network" in done.stderr
    assert "that failed" in done.stderr


def test_an_installation_that_does_not_help_is_noticed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, without=("systemd-socket-activate",))
    machine.add_apt_get()
    machine.be_root()
    done = machine.prepare("run")
    assert done.returncode == 1
    assert done.stderr.endswith("prepare: installed systemd, but this is still not usable: systemd\n")


def test_the_systems_python_is_preferred_because_every_user_can_run_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    own = tmp_path / "python3"
    own.symlink_to(sys.executable)
    done = machine.prepare("python")
    assert done.returncode == 0
    if done.stdout == "/usr/bin/python3\n":
        assert done.stderr == ""
    else:
        assert done.stdout == f"{own}\n"
        assert "other users may be unable to run it" in done.stderr


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    done = Machine(tmp_path).prepare("everything")
    assert (done.returncode, done.stderr) == (1, "prepare: usage: tools/prepare run|test|bench|package|check|python\n")
