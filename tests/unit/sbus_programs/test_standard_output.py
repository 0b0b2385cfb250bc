"""What programs print: results and errors that cannot be written, and error lines that are long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_REASONS = {"full": "No space left on device", "closed": "Bad file descriptor"}
_MODULES = {
    "sbusd": "sbusd.daemon.main",
    "sbusctl": "sbusctl.main",
    "sbus-blob": "sbus_services.blob.main",
    "sbus-feed": "sbus_services.feeds.main",
    "sbus-link": "sbus_services.link.main",
    "sbus-live": "sbus_archive.pipeline.live.main",
    "sbus-metrics": "sbus_services.metrics.main",
    "sbus-pipeline": "sbus_archive.pipeline.main",
    "sbus-recorder": "sbus_archive.recorder.main",
    "sbus-relay": "sbus_services.relay.main",
    "sbus-ship": "sbus_archive.shipping.main",
    "sbus-store": "sbus_services.store.main",
    "sbus-trigger": "sbus_services.trigger.main",
    "sbus-web": "sbus_services.web.main",
}
_CONFIGURED = {"sbus-ship": "destination = '/srv/copy'\n"}
_CHECKED = ("sbus-blob", "sbus-live", "sbus-metrics", "sbus-recorder", "sbus-ship", "sbus-store", "sbus-trigger")


def _run(output: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *program* with a full or closed standard output, which the interpreter buffers as for users."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", f"import sys; from {_MODULES[program]} import main; sys.argv[0] = {program!r}; main()", *arguments]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"] if output == "closed" else []
    with open("/dev/full", "w") as full:
        return subprocess.run([*shell, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)


def _line(program: str, output: str) -> str:
    """Return the error line of *program*."""
    return f"{program}: cannot write to standard output: {_REASONS[output]}\n"


@pytest.mark.parametrize("output", _REASONS)
@pytest.mark.parametrize("program", _MODULES)
@pytest.mark.parametrize("option", ["--version", "--help"])
def test_output_that_is_lost_is_one_line(program: str, option: str, output: str) -> None:
    done = _run(output, program, option)
    assert (done.returncode, done.stderr) == (1, _line(program, output))


@pytest.mark.parametrize("output", _REASONS)
@pytest.mark.parametrize("program", [*_CHECKED, "sbusd"])
def test_a_check_whose_result_cannot_be_written_fails(tmp_path: Path, program: str, output: str) -> None:
    file = tmp_path / "some.toml"
    file.write_text(_CONFIGURED.get(program, ""))
    done = _run(output, program, "--check-config" if program == "sbusd" else "--check", "-C", str(file))
    assert (done.returncode, done.stderr) == (1, _line(program, output))


@pytest.mark.parametrize("program", [*_CHECKED, "sbus-link", "sbus-pipeline", "sbus-relay"])
def test_an_error_line_with_a_long_path_is_whole(program: str) -> None:
    """Its end says why, and what to do."""
    check = ["--archive"] if program == "sbus-pipeline" else ["--check", "-C"]
    path = "/nonexistent" + "/x" * 900
    done = _run("full", program, *check, path)
    assert done.returncode not in (0, None)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{program}: ")
    assert "…" not in line
    assert path in line


_MISSING = {
    "sbus-blob": ["-C", "/nonexistent"],
    "sbus-feed": ["dbus", "--config", "/nonexistent"],
    "sbus-link": ["-C", "/nonexistent"],
    "sbus-live": ["-C", "/nonexistent"],
    "sbus-metrics": ["-C", "/nonexistent"],
    "sbus-recorder": ["-C", "/nonexistent"],
    "sbus-relay": ["-C", "/nonexistent"],
    "sbus-ship": ["-C", "/nonexistent"],
    "sbus-store": ["-C", "/nonexistent"],
    "sbus-trigger": ["-C", "/nonexistent"],
    "sbusd": ["--check-config", "-C", "/nonexistent"],
}


@pytest.mark.parametrize("errors", ["2>/dev/full", "2>&-"], ids=_REASONS)
@pytest.mark.parametrize("program", _MISSING)
def test_an_error_that_is_lost_keeps_its_status(program: str, errors: str) -> None:
    """systemd would start a service with a wrong configuration again and again."""
    for status, arguments in ((1 if program == "sbusd" else 2, ["--no-such-option"]), (78, _MISSING[program])):
        code = f"import sys; from {_MODULES[program]} import main; sys.argv[0] = {program!r}; main()"
        command = ["sh", "-c", f'exec "$@" {errors}', "sh", sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, "")
