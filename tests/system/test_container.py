"""The containers of the system tests: results of commands are exact, containers are isolated, and nothing remains of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cgroups import PREFIX, ControlGroup, own_folder
from tests.support.container import Container, boot_root
from tools.stage import ROOT

SWEEP_SECONDS = 120.0

ABANDON = """
import os, signal
from tests.support.container import Container, boot_root
made = Container(boot_root())
assert os.path.exists(f"/proc/{made.leader}")
print(made.leader, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_command_returns_its_exact_outcome_and_runs_as_the_given_user(machine: Container) -> None:
    done = machine.run("cat; echo error >&2; exit 7", stdin="words", check=False)
    assert (done.status, done.stdout, done.stderr) == (7, "words", "error\n")
    assert machine.output("id -un; pwd; echo $XDG_RUNTIME_DIR; x=1; echo ${x}", user="alice").split() == [
        "alice",
        "/home/alice",
        f"/run/user/{machine.output('id -u alice')}",
        "1",
    ]
    with pytest.raises(AssertionError, match="false: Outcome"):
        machine.run("false")


def test_two_machines_do_not_meet_and_leave_nothing() -> None:
    own_groups = f"{PREFIX}*-{os.getpid()}"  # other workers have containers too
    root, groups = boot_root(), set(own_folder().glob(own_groups))
    first = Container(root)
    try:
        second = Container(root)
        try:
            first.run("touch /etc/of-the-first; hostname first")
            assert second.run("test -e /etc/of-the-first", check=False).status == 1
            assert first.output("systemctl is-system-running --wait || true") in {"running", "degraded"}
        finally:
            second.stop()
        first.run("test -e /etc/of-the-first")
    finally:
        first.stop()
    assert not (root / "etc/of-the-first").exists()
    assert set(own_folder().glob(own_groups)) == groups
    assert is_gone(first.leader)
    first.stop()


def test_a_saved_layer_has_all_that_a_machine_has_changed(tmp_path: Path) -> None:
    root, layer = boot_root(), tmp_path / "layer"
    first = Container(root)
    identity = first.output("echo new >/etc/new; rm /etc/issue; rm -r /etc/cron.daily; mkdir /etc/cron.daily; cat /etc/machine-id")
    first.stop_and_save(layer)
    second = Container(root, layer=layer)
    try:
        assert second.output("cat /etc/new; ls /etc/issue /etc/cron.daily 2>/dev/null || true") == "new\n/etc/cron.daily:"
        assert second.output("cat /etc/machine-id") != identity
        second.run("echo newer >/etc/new")
    finally:
        second.stop()
    assert (layer / "etc/new").read_text() == "new\n"
    assert (root / "etc/issue").exists()


def test_the_next_run_removes_containers_of_a_killed_one() -> None:
    """A killed test run leaves the container running; the next run stops it, which may be another worker of these tests."""
    boot_root()
    done = subprocess.run([sys.executable, "-c", ABANDON], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -9, done.stderr
    ControlGroup().remove()
    deadline = time.monotonic() + SWEEP_SECONDS
    while not is_gone(int(done.stdout)):
        assert time.monotonic() < deadline, "the machine that was left still runs"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Return whether no process *pid* runs."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
