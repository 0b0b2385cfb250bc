"""What a user learns by the calls of the store of streams that rules hide: nothing that depends on what others do in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus import RemoteError
from sbus_services.store.calls.remote_calls import REFUSED
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.store_programs import StoreCaller, StoreProgram

STREAMS = """
[[stream]]
name = "hidden"
keys = ["private/a/"]
max_bytes_per_user = "1MiB"
[[queue]]
name = "hidden"
stream = "hidden"
dead = "private/dead/"

[[stream]]
name = "letters"
keys = ["private/dead/"]
last = 1

[[stream]]
name = "values"
keys = ["open/", "private/values/"]
last = 1

[[stream]]
name = "partly"
keys = ["shared/", "private/partly/"]
max_bytes_per_user = "1MiB"
[[queue]]
name = "partly"
stream = "partly"
"""
"""Only the first user may subscribe to ``private/``."""

KEYS = {"hidden": "private/a/", "letters": "private/dead/", "values": "private/values/", "partly": "private/partly/"}

OPEN = {"values": "open/", "partly": "shared/"}
"""Keys of these streams to which every user may subscribe."""

LEASES = list(range(1, 65))

MAY_SEE = {"read": {"next", "last"}}
"""Members that a user sees who may subscribe to some keys of the stream. Source: sbus-store(8), "store/read"."""

Probe = tuple[str, list[tuple[bytes, bytes]], dict[str, Any]]


@pytest.fixture
def store(bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store with streams that rules hide."""
    with StoreProgram(tmp_path, bus.path, STREAMS) as made:
        yield made


def probes() -> list[Probe]:
    """Return what the second user asks for, by each call."""
    found: list[Probe] = [("streams", [], {})]
    found += [("read", [], {"stream": each, "from": "first", "pattern": OPEN[each]}) for each in OPEN]
    found += [("last", [], {"patterns": [each]}) for each in ("", "private/", "*/a/x", "open/", *KEYS.values())]
    for stream, key in KEYS.items():
        found += [("read", [], {"stream": stream, **more}) for more in ({}, {"pattern": key}, {"time": 1.0}, {"reader": "r"}, {"from": 1})]
        found += [("read", [], {"stream": stream, "pattern": each}) for name, each in OPEN.items() if name != stream]
        found += [("position", [], {"stream": stream, "reader": "r", **more}) for more in ({}, {"seq": 1}, {"drop": True})]
        found += [("peek", [], {"stream": stream}), ("forget", [], {"stream": stream, "keys": [f"{key}x"]})]
        found += [("purge", [], {"stream": stream}), ("put", [(f"{key}x".encode(), b"forged")], {"messages": [{"id": "1"}]})]
    for queue in ("hidden", "partly"):
        found += [("take", [], {"queue": queue, "max": 64}), ("purge", [], {"queue": queue, "seqs": LEASES})]
        found += [("peek", [], {"queue": queue, "state": state}) for state in ("ready", "leased", "delayed", "dead")]
        found += [(name, [], {"queue": queue, "leases": LEASES}) for name in ("ack", "retry", "fail", "extend")]
        found.append(("revive", [], {"queue": queue, "seqs": LEASES}))
    found.append(("acknowledge", [], {}))
    return found


def answer(caller: StoreCaller, probe: Probe) -> str | tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    """Return the answer to *probe*, without what the manual lets everybody see."""
    name, sent, head = probe
    try:
        found = caller.call(name, sent, **{f"{key}_" if key == "from" else key: value for key, value in head.items()})
    except RemoteError as error:
        return error.words
    return {key: value for key, value in found.head.items() if key not in MAY_SEE.get(name, ())}, found.messages


def fill(owner: StoreCaller) -> None:
    """Store messages, make gaps, lease jobs, and let one fail, delay one, keep readers, and remove a key, in all hidden streams."""
    for stream, key in KEYS.items():
        owner.put(f"{key}x", b"secret", id="1")
        owner.put(f"{key}gone", b"secret")
        owner.call("position", stream=stream, reader="r", seq=1)
        owner.call("forget", stream=stream, keys=[f"{key}gone"])
    for queue in ("hidden", "partly"):
        owner.put(f"{KEYS[queue]}later", b"secret", delay=3_600)
        owner.put(f"{KEYS[queue]}job", b"secret")
        leases = owner.call("take", queue=queue, max=2).leases
        owner.call("fail", queue=queue, leases=leases[:1], reason="secret")
        while True:  # until messages beyond the quota are gaps
            owner.bus.publish(f"{KEYS[queue]}much", bytes(100_000))
            owner.bus.ping()
            if any("gap" in each for each in owner.call("read", stream=queue, from_="last")["messages"]):
                break
    wait_for(lambda: len(owner.call("read", stream="letters", from_="first").payloads) >= 2, "the dead letter")


def test_no_answer_depends_on_what_is_hidden(alice: StoreCaller, mallory: StoreCaller) -> None:
    asked = probes()
    assert {name for name, _, _ in asked} | {"status"} == {*REFUSED, "last", "read", "position", "streams"}, "there is a new call"
    before = [answer(mallory, each) for each in asked]
    fill(alice)
    wait_for(lambda: all(each["messages"] for each in alice.call("streams")["streams"]), "the figures")
    for probe, first in zip(asked, before, strict=True):
        then = answer(mallory, probe)
        assert then == first, probe
        assert "secret" not in str(then)
        name, _, head = probe
        if isinstance(then, str):
            assert then.startswith("EACCES ") or (name == "last" and then.startswith("ENOENT ")), (probe, then)
        elif name == "streams":
            assert then[0] == {"streams": [], "queues": [], "run": then[0]["run"]}
        elif name == "read":
            assert head["pattern"] == OPEN.get(head["stream"]), (probe, then)
        else:
            assert name in {"put", "ack", "retry", "fail", "extend"} or head == {"patterns": ["open/"]}, (probe, then)
    state = bytes(mallory.bus.call("store/status", timeout=60)).decode()
    assert not any(word in state for word in ("private/", "hidden", "partly"))
    assert alice.call("read", stream="hidden", from_="first").payloads[0] == b"secret", "and nothing was changed"
