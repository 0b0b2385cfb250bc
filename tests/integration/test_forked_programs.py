"""Programs that tests fork behave as those that an interpreter starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked_programs import ForkedProgram, start_program
from tests.support.relays import ENV, wait_for
from tools.stage import ROOT

SECONDS = 60.0


def outputs(folder: Path, *words: str, forked: bool) -> tuple[int, bytes, bytes]:
    """Return the status and both outputs of a program."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        prefix = [] if forked else ["env"]
        process = start_program(*words, env=ENV, stdout=stdout.fileno(), stderr=stderr.fileno(), prefix=prefix)
    assert isinstance(process, ForkedProgram) is forked
    return process.wait(SECONDS), (folder / "stdout").read_bytes(), (folder / "stderr").read_bytes()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("sbus_services.store.main", "--version"), 0),
        (("sbus_services.store.main", "--help"), 0),
        (("sbus_services.store.main", "--unknown"), 2),
        (("sbus_services.store.main", "-C", "/nonexistent"), os.EX_CONFIG),
        (("tests.support.signal_moment", "15", "1", "sbusd.nothing"), 1),
    ],
)
def test_status_and_outputs_are_those_of_an_interpreter(tmp_path: Path, words: tuple[str, ...], status: int) -> None:
    done = outputs(tmp_path, *words, forked=True)
    started = outputs(tmp_path, *words, forked=False)
    assert done[:2] == started[:2]
    assert done[0] == status
    # The frames of a traceback above the function main differ.
    assert done[2].splitlines()[-1:] == started[2].splitlines()[-1:]


def test_a_running_program_has_only_its_own_descriptors_and_environment(folder: Path) -> None:
    config = folder / "blob.toml"
    config.write_text(f'bus = "{folder}/none"\n')
    words = ("sbus_services.blob.main", "-C", str(config), "--listen", str(folder / "socket"))
    env = {**ENV, "FOR_THIS_PROGRAM": "1"}
    with (folder / "log").open("wb") as log, open(os.devnull, "rb") as other:
        os.set_inheritable(other.fileno(), True)
        process = start_program(*words, env=env, stdout=subprocess.PIPE, stderr=log.fileno())
    try:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.001)
        wait_for((folder / "socket").is_socket, "the socket")
        targets = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert sorted(each for each in targets if each.startswith("/")) == [os.devnull, str(folder / "log")]
        assert os.readlink(f"/proc/{process.pid}/cwd") == "/"
        assert os.readlink(f"/proc/{process.pid}/exe") == os.path.realpath(sys.executable)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    process.kill()  # does nothing
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.stdout.close()


def test_the_end_of_the_tests_ends_their_programs(tmp_path: Path) -> None:
    code = (
        "import subprocess; from tests.support.forked_programs import start_program; from tests.support.relays import ENV;"
        "process = start_program('sbus_services.trigger.main', '-C', '/dev/null', env=ENV, stdout=2, stderr=2, prefix=[]);"
        "print(process.pid, flush=True); process.send_signal(19); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tests:
        assert tests.stdout is not None
        number = int(tests.stdout.readline())
        descriptor = os.pidfd_open(number)
        tests.kill()
    try:
        # Its parent has ended, so init(1) waits for it.
        wait_for(lambda: has_ended(descriptor), "the end of the program")
    finally:
        os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    """Return whether the process behind *descriptor*, of pidfd_open(2), has ended."""
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    return False
