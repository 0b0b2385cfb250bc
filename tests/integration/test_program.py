"""The program sbusd from its start to its end: background, pid file, signals, configuration, and users' mistakes."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbusd.daemon.main import TABLE_DESCRIPTORS
from tests.support.daemons import Daemon, StartDaemon
from tests.support.program import Program
from tests.support.wire import RawClient, error_code


def connect(path: Path | str | bytes) -> RawClient:
    """Return a client of the bus at *path*."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(os.fspath(path))
    return RawClient(sock)


def server_pid(client: RawClient) -> int:
    """Return the id of the process that a client's bus listens with."""
    pid: int = struct.unpack("iII", client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def wait_ready(process: subprocess.Popen[bytes]) -> bytes:
    """Return what the program writes to standard output until it is ready."""
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.read()


def table_size(pid: int) -> int:
    """Return for how many descriptors a process has room. Source: FDSize of proc_pid_status(5)."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("FDSize:"))
    return int(line.split()[1])


# -- background


def test_without_f_the_command_returns_when_the_bus_can_be_used(program: Program) -> None:
    path = program.folder / "socket"
    pid = program.run_in_background("-a", str(path))
    client = connect(path)
    assert client.ask(controls.PING, b"x") == b"x"
    assert server_pid(client) == pid
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    client.close()
    program.end(pid)
    assert not path.exists()
    assert not program.pid_file.exists()


def test_the_table_of_descriptors_does_not_grow_while_the_bus_serves(program: Program) -> None:
    """Growing it stops the thread for milliseconds, whenever a user has opened twice as many connections."""
    path = program.folder / "socket"
    pid = program.run_in_background("-a", str(path))
    _, limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert table_size(pid) >= min(limit, TABLE_DESCRIPTORS)
    program.end(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_background_bus_which_removes_its_files(program: Program, number: signal.Signals) -> None:
    path = program.folder / "socket"
    pid = program.run_in_background("-a", str(path))
    client = connect(path)
    client.barrier()
    program.end(pid, number)
    assert client.receive_to_end() == []
    client.close()
    assert sorted(os.listdir(program.folder)) == ["program.stderr"]


def test_a_hangup_reloads_the_background_bus_from_where_the_command_ran(program: Program) -> None:
    path, config = program.folder / "socket", program.folder / "own.toml"
    config.write_text("")
    pid = program.run_in_background("-a", str(path), "-C", "own.toml")
    client = connect(path)
    client.subscribe(b"lab/x")
    assert client.barrier() == []
    config.write_text('[[policy]]\nkeys = "lab/"\nsubscribe = "deny"\n')
    os.kill(pid, signal.SIGHUP)
    reported = client.receive()
    assert error_code(reported) == "EPERM"
    assert b"lab/x" in reported
    assert str(config).encode() in reported
    assert client.barrier() == []
    client.close()


def test_relative_paths_are_those_of_the_folder_the_command_ran_in(program: Program) -> None:
    done = program.run("-a", "socket", "-p", "own.pid")
    assert done.status == 0
    pid = int((program.folder / "own.pid").read_text())
    connect(program.folder / "socket").close()
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    assert sorted(os.listdir(program.folder)) == ["program.stderr"]


def test_a_pid_file_that_is_there_is_an_error_and_nothing_is_left(program: Program) -> None:
    program.pid_file.write_text("1\n")
    done = program.run("-a", str(program.folder / "socket"), "-p", str(program.pid_file))
    assert done.status == 1
    assert str(program.pid_file) in done.complaint()
    assert program.pid_file.read_text() == "1\n"
    assert not (program.folder / "socket").exists()


def test_a_pid_file_that_cannot_be_made_is_an_error(program: Program) -> None:
    done = program.run("-a", str(program.folder / "socket"), "-p", "/proc/pid")
    assert done.status == 1
    assert "/proc/pid" in done.complaint()
    assert not (program.folder / "socket").exists()


def test_without_the_option_no_pid_file_is_written(program: Program) -> None:
    path = program.folder / "socket"
    done = program.run("-c", "-a", str(path), "-p", "/dev/null")
    assert done.status == 0
    client = connect(path)
    descriptor = os.pidfd_open(server_pid(client))
    assert sorted(os.listdir(program.folder)) == ["program.stderr", "socket"]
    client.close()
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    assert sorted(os.listdir(program.folder)) == ["program.stderr"]


# -- foreground


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_bus_with_status_0_and_removes_its_socket(daemon: StartDaemon, number: signal.Signals) -> None:
    bus = daemon()
    client = bus.client()
    client.barrier()
    bus.process.send_signal(number)
    assert bus.process.wait(30) == 0
    assert client.receive_to_end() == []
    assert not Path(bus.path).exists()


def test_a_signal_before_the_last_packet_is_read_is_not_forgotten(bus: Daemon) -> None:
    client = bus.client()
    client.socket.setblocking(False)
    for _ in range(50):
        client.publish(b"a", bytes(1_000))
    bus.process.send_signal(signal.SIGTERM)
    assert bus.process.wait(30) == 0


def test_with_c_the_bus_ends_after_its_last_client(program: Program) -> None:
    path = program.folder / "socket"
    process = program.start("-f", "-c", "-a", str(path))
    assert wait_ready(process) == b""
    # No client has connected yet, so there was no last one.
    assert process.poll() is None
    first, second = connect(path), connect(path)
    second.barrier()
    first.close()
    assert second.barrier() == []
    second.close()
    assert process.wait(30) == 0
    assert not path.exists()


def test_a_socket_that_another_program_has_replaced_is_kept(daemon: StartDaemon) -> None:
    bus = daemon()
    os.unlink(bus.path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(bus.path)
        assert bus.stop() == 0
        assert Path(bus.path).exists()


def test_systemd_is_notified_when_the_bus_is_ready(program: Program) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(program.folder / "notify"))
        manager.settimeout(30)
        process = program.start("-f", "-a", str(program.folder / "socket"), env={"NOTIFY_SOCKET": str(program.folder / "notify")})
        said = [manager.recv(4_096).splitlines()]
        while b"READY=1" not in said[-1]:
            # What it has stored of a bus before is taken back first.
            said.append(manager.recv(4_096).splitlines())
        connect(program.folder / "socket").close()
        process.send_signal(signal.SIGTERM)
        while b"STOPPING=1" not in manager.recv(4_096).splitlines():
            pass  # a status
        assert process.wait(30) == 0
        wait_ready(process)


def test_the_start_imports_nothing_heavy(program: Program) -> None:
    path = program.folder / "socket"
    process = program.start("-f", "-a", str(path), env={"PYTHONPROFILEIMPORTTIME": "1"})
    wait_ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in program.stderr.splitlines() if line.startswith("import time:")
    }
    assert "sbusd" in imported
    assert not imported & {"typer", "click", "rich", "pyroute2", "pydantic", "asyncio", "hypothesis", "pytest"}


# -- a standard error that fails


def start_with_records(program: Program) -> tuple[subprocess.Popen[bytes], RawClient]:
    """Start a bus that leaves no record out, with a pipe from its standard error, and return it with a client."""
    config = program.folder / "sbusd.toml"
    config.write_text("[log.rate_per_cause_per_user]\nburst = 100000\n")
    process = program.start("-f", "-a", str(program.folder / "socket"), "-C", str(config), stderr=subprocess.PIPE)
    assert wait_ready(process) == b""
    return process, connect(program.folder / "socket")


def cause_records(client: RawClient, count: int) -> None:
    """Cause *count* records, and fail unless each error is reported."""
    for number in range(count):
        client.subscribe(b"!/no/%d" % number)
        if number % 50 == 49:
            assert len(client.barrier()) == 50


def test_an_unread_standard_error_does_not_block_the_bus(program: Program) -> None:
    process, client = start_with_records(program)
    cause_records(client, 3_000)
    log = json.loads(client.ask(controls.STATS))["log"]
    # What a pipe does not take waits, within bounds; the rest is counted.
    assert log["dropped"] > 1_000
    assert sum(log.values()) >= 3_000
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stderr is not None
    with process.stderr:
        assert b"Traceback" not in process.stderr.read()


def test_a_standard_error_that_is_closed_does_not_end_the_bus(program: Program) -> None:
    process, client = start_with_records(program)
    assert process.stderr is not None
    process.stderr.close()
    cause_records(client, 500)
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


# -- configuration


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("limits = [", "invalid TOML"),
        ('separator = "x"', "separator"),
        ("seperator = '/'", "seperator"),
        ("[limits]\nqueue_bytes = '64 parsecs'", "queue_bytes"),
        ("[limits]\nqueue_packets = 0", "queue_packets"),
        ("credential_prefix = '!/cred/*/1/1'", "credential_prefix"),
        ("credential_prefix = '!/cred/1/1/1'\nseparator = '.'", "credential_prefix"),
        ("\x00", "sbusd.toml"),
    ],
)
@pytest.mark.parametrize("mode", [("-f",), ("-p", "/dev/null"), ("--check-config",)])
def test_a_wrong_configuration_is_one_line_and_status_78(program: Program, mode: tuple[str, ...], text: str, says: str) -> None:
    config = program.folder / "sbusd.toml"
    config.write_text(text)
    done = program.run(*mode, "-a", str(program.folder / "socket"), "-C", str(config))
    assert done.status == 78
    assert says in done.complaint()
    assert str(config) in done.complaint()
    assert not (program.folder / "socket").exists()


def test_a_configuration_that_is_named_must_be_there(program: Program) -> None:
    done = program.run("-f", "-a", "socket", "-C", str(program.folder / "absent.toml"))
    assert done.status == 78
    assert "absent.toml" in done.complaint()


def test_a_drop_in_overrides_and_is_named_in_errors(program: Program) -> None:
    config = program.folder / "sbusd.toml"
    config.write_text("[limits]\nkey_bytes = 100\n")
    drop_ins = program.folder / "sbusd.toml.d"
    drop_ins.mkdir()
    (drop_ins / "10-longer.toml").write_text("[limits]\nkey_bytes = 200\n")
    path = program.folder / "socket"
    process = program.start("-f", "-a", str(path), "-C", str(config))
    wait_ready(process)
    client = connect(path)
    client.publish(b"k" * 200)
    assert client.barrier() == []
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    (drop_ins / "20-wrong.toml").write_text("[limits]\nkey_bytes = true\n")
    done = program.run("--check-config", "-C", str(config))
    assert done.status == 65
    assert "20-wrong.toml" in done.complaint()
    config.write_text("[limits]\nkey_bytes = true\n")
    done = program.run("--check-config", "-C", str(config))
    assert done.status == 78
    assert "sbusd.toml: limits.key_bytes" in done.complaint()


def test_a_bus_starts_and_restarts_with_an_unreadable_drop_in(program: Program) -> None:
    """The keys of its rules cannot be known, so every key is denied until the file is gone; --check-config says so beforehand."""
    config, path = program.folder / "sbusd.toml", program.folder / "socket"
    drop_in = program.folder / "sbusd.toml.d" / "50-lab.toml"
    config.touch()
    drop_in.mkdir(parents=True)
    done = program.run("--check-config", "-C", str(config))
    assert done.status == 78
    assert "denies every key to everyone" in done.complaint()
    process = program.start("-f", "-a", str(path), "-C", str(config))
    wait_ready(process)
    client = connect(path)
    client.publish(b"any/key")
    (reported,) = client.barrier()
    assert error_code(reported) == "EPERM"
    drop_in.rmdir()
    process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while True:
        client.publish(b"any/key")
        if not client.barrier():
            break
        assert time.monotonic() < deadline
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_valid_configuration_is_reported_as_valid(program: Program) -> None:
    config = program.folder / "sbusd.toml"
    config.write_text('[limits]\nqueue_bytes = "64MiB"\n')
    done = program.run("--check-config", "-C", str(config))
    assert (done.status, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


# -- mistakes on the command line


@pytest.mark.parametrize(
    "options",
    [
        ("--no-such-option",),
        ("-x",),
        ("-a",),
        ("-a", ""),
        ("-a", "x" * 200),
        ("-a", "/no/such/folder/socket"),
        ("-u", "no-such-user"),
        ("-u", "-1"),
        ("argument",),
        ("--user",),
    ],
)
def test_a_mistake_is_one_line_and_status_1(program: Program, options: tuple[str, ...]) -> None:
    done = program.run("-f", *options, env={"XDG_RUNTIME_DIR": ""})
    assert done.status == 1
    assert done.complaint()


def test_help_and_version_are_printed(program: Program) -> None:
    for option, says in (("--help", "--address"), ("--version", "sbusd 0.")):
        done = program.run(option)
        assert (done.status, done.stderr) == (0, "")
        assert says in done.stdout


# -- stalls


def test_the_longest_stalls_are_in_the_file_when_the_bus_has_ended(daemon: StartDaemon, folder: Path) -> None:
    file = folder / "stalls.json"
    bus = daemon("--stalls", str(file))
    bus.client().ask(controls.PING, b"x")
    bus.check()
    found = json.loads(file.read_text())
    assert found["turns"] > 1
    longest = found["longest"]
    assert longest["stall_us"] <= longest["wall_us"] - longest["run_queue_us"] + 1
    assert longest["has_slept"] or longest["stall_us"] <= longest["cpu_us"]
    assert longest["cause"] in found["causes"]
    assert "reload and restart" in found["causes"], "what is done between turns is measured too"
    assert found["causes"]["CMSG !/bus/ping"]["steps"] == 1
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_of_stalls_that_cannot_be_opened_is_one_line_and_status_1(program: Program) -> None:
    done = program.run("-f", "-a", str(program.folder / "socket"), "--stalls", str(program.folder / "none" / "file"))
    assert done.status == 1
    assert f"cannot open {program.folder / 'none' / 'file'}: No such file or directory" in done.complaint()
    assert not (program.folder / "socket").exists()
