"""``sbusctl relay status`` on a real Redis, with a relay and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support.relays import ENV, WAIT_SECONDS, Host, data_of, wait_for

MakeHosts = Callable[..., list[Host]]


def status(host: Host, *options: str) -> str:
    """Return the output of the command."""
    command = [sys.executable, "-m", "sbusctl.main", *options, "relay", "status", "--redis", str(host.server.path)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_reports_queued_messages_and_the_reason(twins: MakeHosts) -> None:
    a, b = twins(1001, 1002)
    b.relay.kill()
    ret = a.send("x", 1002, try_=1000)
    a.wait_counted("tries-failed", 2)
    a.relay.kill()
    said: dict[str, Any] = json.loads(status(a, "--json=short"))
    assert said["queues"]["backlog"] == 1
    assert said["queues"]["waiting"] + said["queues"]["sending"] == 1
    assert 0 <= said["queues"]["backlog_oldest_seconds"] < WAIT_SECONDS
    peer = said["peers"]["1002"]
    assert peer["failures"] >= 2
    assert "Cannot connect" in peer["reason"]
    assert peer["reached_seconds_ago"] is None
    assert said["counters"]["tries-failed"] >= 2
    assert said["durability"] == ""
    text = status(a)
    assert "a crash of Redis loses no confirmed message" in text
    assert "backlog " in text
    assert "HOST" in text
    a.relay.start()
    b.relay.start()
    b.reply(b.receive("msgbus.x"), b"ok")
    assert data_of(a.receive(ret)) == b"ok"
    wait_for(lambda: json.loads(status(a, "--json=short"))["relays"] == 1, "the end of the lease of the killed relay")
    said = json.loads(status(a, "--json=short"))
    assert (said["queues"]["backlog"], said["peers"]["1002"]["failures"]) == (0, 0)
    assert said["peers"]["1002"]["reason"] == ""


def test_a_redis_that_is_not_there_is_one_line(tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("none")
    command = [sys.executable, "-m", "sbusctl.main", "relay", "status", "--redis", f"{folder}/none.sock"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbusctl: cannot connect to Redis at {folder}/none.sock: ")
    assert done.stderr.count("\n") == 1


def test_a_redis_that_can_lose_messages_is_reported(twins: MakeHosts) -> None:
    host = twins(1001)[0]
    host.relay.kill()
    host.redis.config_set("appendfsync", "everysec")
    reason = "appendfsync is everysec, set it to always"
    assert json.loads(status(host, "--json=short"))["durability"] == reason
    assert f"a crash can lose messages: {reason}" in status(host)
    host.relay.start()
    host.relay.wait_logged(f"a crash of Redis {host.server.path} can lose confirmed messages: {reason}")


def test_a_redis_that_does_not_disclose_its_settings_is_used_without_a_warning(twins: MakeHosts) -> None:
    host = twins(1001)[0]
    host.relay.kill()
    host.redis.execute_command("ACL", "SETUSER", "default", "-config")
    assert json.loads(status(host, "--json=short"))["durability"] is None
    assert "unknown: Redis does not disclose its settings" in status(host)
    host.relay.start()
