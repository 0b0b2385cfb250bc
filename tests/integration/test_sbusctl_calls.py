"""The commands of sbusctl(1) for calls, presence and traffic on a real bus, by real users."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from sbus import Bus
from tests.support.daemons import Daemon
from tests.support.shell import TIMEOUT_SECONDS, Shell, ended, running
from tests.support.users import User
from tools.stage import Stage

SHARES_BUS = True


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    return Shell(stage, bus)


def status(shell: Shell, *arguments: str, user: User | None = None) -> tuple[int, str]:
    done = shell.run(*arguments, user=user)
    assert done.stderr.count(b"\n") == 1
    return done.returncode, done.stderr.decode().removeprefix("sbusctl: ").rstrip("\n")


def await_subscriptions(observer: Bus, process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until a process has *count* subscriptions."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None:
        connections = json.loads(observer.control("!/bus/connections"))["connections"]
        if any(each["pid"] == process.pid and each["subscriptions"] >= count for each in connections):
            return
        assert time.monotonic() < end, "it has not subscribed"
    raise AssertionError(process.communicate())


def test_a_program_serves_and_knows_its_caller(shell: Shell, first_user: User, second_user: User) -> None:
    script = 'echo "$SBUS_COMMAND $SBUS_CALLER_UID $SBUS_CALLER_GID"; cat'
    with running(shell, "serve", "greet", "--exec", "sh", "--", "-c", script, user=first_user, until="rpc/greet"):
        said = shell.succeed("call", "greet", "-", stdin=b"\0data", user=second_user)
        assert said == f"greet {second_user.uid} {second_user.gid}\n".encode() + b"\0data"
        answer = json.loads(shell.succeed("--json=short", "call", "greet", "x", user=second_user))
        assert answer["callee"]["uid"] == first_user.uid
        assert answer["data"].endswith("\nx")
        (line,) = shell.succeed("call", "--all", "greet", "x").decode().splitlines()
        assert line.split("\t")[1:] == [str(first_user.uid), "greet 0 0\\nx"]
        (member,) = json.loads(shell.succeed("members", "rpc/greet", "--json=short"))["members"]
        assert (member["uid"], member["id"]) == (first_user.uid, answer["callee"]["id"])


def test_each_kind_of_failure_has_its_status(shell: Shell) -> None:
    assert status(shell, "call", "nothing", "x") == (3, "no service for 'nothing'")
    assert status(shell, "call", "--all", "nothing", "x") == (3, "no service for 'nothing'")
    for line in (("call", "--twin", "7", "nothing"), ("store", "streams", "--twin", "7"), ("store", "read", "s", "--twin", "7")):
        code, words = status(shell, *line)
        assert (code, words.partition(" on host ")[2]) == (
            3,
            "7: sbus-relay is not running on this bus; start it: systemctl start sbus-relay, or sbus-relay -C FILE for a bus of your own",
        )
    script = 'case "$(cat)" in fail) echo one >&2; echo no such account >&2; exit 7;; kill) kill -9 $$;; esac'
    with (
        running(shell, "serve", "work", "--exec", "sh", "--", "-c", script, until="rpc/work") as service,
        running(shell, "serve", "slow", "--timeout", "0.5", "--exec", "sleep", "--", "60", until="rpc/slow"),
    ):
        assert status(shell, "call", "work", "fail") == (4, "'work' failed: exit status 7: no such account")
        assert status(shell, "call", "work", "kill") == (4, "'work' failed: killed by SIGKILL")
        assert status(shell, "call", "slow", "x") == (4, "'slow' failed: the program was killed: it ran longer than 0.5 s")
        code, words = status(shell, "call", "--all", "work", "fail")
        assert (code, words.endswith("'work' failed: exit status 7: no such account")) == (4, True)
        assert status(shell, "call", "--timeout", "0", "work", "x")[0] == 6
        service.send_signal(signal.SIGTERM)
        assert ended(service)[0] == 0


def test_killing_the_service_fails_the_call_at_once(shell: Shell, first_user: User, second_user: User) -> None:
    slowly = "while sleep 1; do echo still at work; done"
    with (
        running(shell, "serve", "slow", "--exec", "sh", "--", "-c", slowly, user=first_user, until="rpc/slow") as service,
        running(shell, "call", "slow", "--timeout", "600", "x", user=second_user) as caller,
        Bus.connect(shell.daemon.path) as observer,
    ):
        # The place of answers, and the end of who owes one.
        await_subscriptions(observer, caller, 2)
        service.kill()
        code, _, words = ended(caller)
        assert (code, b": disconnected" in words) == (5, True)


def test_permitted_callers(shell: Shell, first_user: User, second_user: User) -> None:
    allowed = ["--allow-user", str(first_user.uid)]
    with running(shell, "serve", "cat", *allowed, "--exec", "cat", until="rpc/cat"):
        assert shell.succeed("call", "cat", "x", user=first_user) == b"x"
        assert status(shell, "call", "cat", "x", user=second_user) == (4, f"'cat' failed: user {second_user.uid} may not call cat")


def test_an_answer_that_no_packet_holds(shell: Shell) -> None:
    with running(shell, "serve", "big", "--exec", "head", "--", "-c", "307201", "/dev/zero", until="rpc/big"):
        assert status(shell, "call", "big", "x") == (4, "'big' failed: the output of the program is too large: the maximum is 307200 bytes")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["call", "a*", "x"], "contains *"),
        (["call", "--all", "--twin", "5", "a", "x"], "omit --twin"),
        (["serve", "a", "--exec", "no-such-program"], "no executable program"),
        (["serve", "a", "--exec", "cat", "--allow-user", "no-such-user"], "unknown user"),
        (["serve", "a", "--exec", "cat", "--allow-group", "no-such-group"], "unknown group"),
        (["serve", "a", "--exec", "cat", "--allow-twin", "some"], "neither a host number nor 'all'"),
        (["serve", "a", "--exec", "cat", "--allow-twin", "0"], "invalid twin 0: must be 1 to 4294967295"),
        (["serve", "a*", "--exec", "cat"], "contains *"),
        (["monitor", "--filter-user", "no-such-user"], "unknown user 'no-such-user'"),
    ],
)
def test_errors_are_named(shell: Shell, arguments: list[str], says: str) -> None:
    done = shell.run(*arguments)
    assert (done.returncode, says in done.stderr.decode()) == (2, True), done.stderr
    assert b"Traceback" not in done.stderr


def test_presence(shell: Shell, first_user: User) -> None:
    with running(shell, "presence", "--json=short", "--timeout", "60") as watcher, Bus.connect(shell.daemon.path) as observer:
        await_subscriptions(observer, watcher, 1)
        shell.succeed("sub", "some/key", "--timeout", "0", user=first_user)
        assert watcher.stdout is not None
        seen: list[tuple[str, int, str | None]] = []
        while len(seen) < 2:  # the connections of this test are announced too
            each = json.loads(watcher.stdout.readline())
            if each["uid"] == first_user.uid:
                seen.append((each["type"], each["uid"], each.get("pattern")))
        assert seen == [("connect", first_user.uid, None), ("subscribe", first_user.uid, "some/key")]


def test_monitor_shows_all_traffic_to_the_owner_alone(shell: Shell, first_user: User, second_user: User) -> None:
    assert status(shell, "monitor", "--timeout", "0", user=first_user)[0] == 1
    only = ["--filter-user", str(first_user.uid)]
    with (
        running(shell, "monitor", "--json=short", *only, "-n", "4", "--timeout", "60") as monitor,
        Bus.connect(shell.daemon.path) as observer,
    ):
        # The tap is active when the bus has confirmed it, which its first record shows.
        end = time.monotonic() + TIMEOUT_SECONDS
        while "tap" not in shell.daemon.stderr or f"pid={monitor.pid}" not in shell.daemon.stderr:
            assert time.monotonic() < end, shell.daemon.stderr
        assert observer.ping() > 0
        shell.succeed("pub", "not/shown", "x", user=second_user)
        shell.succeed("pub", f"!/cred//{first_user.uid}//secret", "hush", user=first_user)
        assert "EPERM" in shell.fail("sub", "!/bus/", user=first_user)
        code, out, _ = ended(monitor)
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert {each["peer"]["uid"] for each in records} == {first_user.uid}
    assert [each["type"] for each in records[:3]] == ["connect", "message", "disconnect"]
    message = records[1]
    assert (message["key"], message["payload"], message["recipients"]) == (f"!/cred//{first_user.uid}//secret", "hush", 0)


def test_ctrl_c_is_quiet(shell: Shell) -> None:
    with running(shell, "serve", "cat", "--exec", "cat", until="rpc/cat") as service:
        service.send_signal(signal.SIGINT)
        assert ended(service) == (130, b"", b"")
