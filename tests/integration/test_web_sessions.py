"""Sessions of sbus-web on a real bus: requests and frames, allow lists, limits, a slow browser, and a bus that ends."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from sbus import Bus, Message
from sbus_services.web.frames import MAX_FRAME_BYTES
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.shared_bus import SharedBus
from tests.support.web_gateway import ENV, Gateway, Page

SHARES_BUS = True


@pytest.fixture(scope="module")
def module_gateway(module_bus: SharedBus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway behind ``gateway``."""
    with Gateway(tmp_path_factory.mktemp("gateway"), module_bus.daemon.path) as made:
        yield made


@pytest.fixture
def gateway(module_gateway: Gateway, bus: Daemon) -> Gateway:
    """A gateway for all tests that do not end it, which has no session when a test begins."""
    return module_gateway


@pytest.fixture
def own_gateway(bus: Daemon, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that the test ends."""
    with Gateway(tmp_path, bus.path) as made:
        yield made


def test_messages_have_their_sender_and_payloads_of_any_bytes(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            hello = await page.next("hello")
            assert hello["user"].startswith(f"!/cred/{os.getegid()}/{os.geteuid()}/")
            assert (hello["subscribe"], hello["publish"]) == ([""], [""])
            assert (await page.ask("subscribe", pattern="a/"))["type"] == "result"
            with Bus.connect(bus.path) as client:
                number = int(client.control("!/conn/whoami").split(b"/")[2])
                client.publish("a/text", "grün")
                client.publish(b"a/\xff", b"\xff\x00")
                client.publish("b/other", "x")
                client.publish("a/end", "")
                client.ping()
            text, raw, end = [await page.next("message") for _ in range(3)]
            assert (text["pattern"], text["key"], text["payload"]) == ("a/", "a/text", "grün")
            assert text["sender"] == {"connection": number, "uid": os.geteuid(), "gid": os.getegid(), "pid": os.getpid(), "origin": None}
            assert (raw["key"], base64.b64decode(raw["payload_base64"])) == ("a/\udcff", b"\xff\x00")
            assert (end["key"], end["payload"]) == ("a/end", "")

    asyncio.run(use())


def test_the_author_of_a_vouched_message_is_its_origin(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon(config=f"[rights.vouch]\nusers = [{os.geteuid()}]\n")

    async def use(gateway: Gateway) -> None:
        async with (await gateway.login()).session() as page:
            await page.ask("subscribe", pattern="a/")
            client = bus.client()
            client.send(b"CMSG !/from/!/host/alpha/!/cred/1/2/3\0MSG a/b\0x")
            sender = (await page.next("message"))["sender"]
            assert (sender["uid"], sender["gid"], sender["pid"]) == (None, None, None)
            assert sender["origin"] == "!/host/alpha/!/cred/1/2/3"

    with Gateway(tmp_path, bus.path) as gateway:
        asyncio.run(use(gateway))


def test_publications_get_the_number_of_recipients(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            with Bus.connect(bus.path) as client, client.subscribe("out/") as subscription:
                assert (await page.ask("publish", key="out/x", payload="grün"))["recipients"] == 1
                assert (await page.ask("publish", key="out/\udcff", payload_base64="AP8="))["recipients"] == 1
                assert (await page.ask("publish", key="nowhere", payload=""))["recipients"] == 0
                first, second = subscription.receive(60), subscription.receive(60)
            assert isinstance(first, Message)
            assert isinstance(second, Message)
            assert (first.key, first.text, second.key_bytes, second.payload) == ("out/x", "grün", b"out/\xff", b"\0\xff")
            too_long = await page.ask("publish", key="x", payload="x" * 500_000)
            assert "packet too long" in too_long["error"]

    asyncio.run(use())


def test_connections_and_stats(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            with Bus.connect(bus.path, name="neighbour"):
                listing = await page.ask("connections")
            names = {each["name"] for each in listing["connections"]}
            assert {"neighbour", "sbus-web"} <= names
            assert listing["users"].get("0", "root") == "root"
            (command,) = {each["command"] for each in listing["connections"] if each["name"] == "neighbour"}
            assert command == Path("/proc/self/comm").read_text().strip()
            assert (listing["hidden"], listing["more"]) == (0, False)
            assert (await page.ask("connections"))["time"] > listing["time"]
            assert (await page.ask("stats"))["stats"]["scope"] == "bus"

    asyncio.run(use())


def test_all_pages_of_a_long_list_are_returned(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            clients = [bus.client() for _ in range(100)]
            for client in clients:
                client.send(b"CMSG !/bus/ping")
                client.receive()
            listing = await page.ask("connections")
            assert len(listing["connections"]) == 101

    asyncio.run(use())


def test_the_default_allows_no_reserved_key(gateway: Gateway) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            for pattern in ("!/cred//0//", "!/event/", "!/conn/1/", "!/"):
                refused = await page.ask("subscribe", pattern=pattern)
                assert (refused["type"], refused["code"]) == ("error", "EPERM")
                assert "--allow" in refused["error"]
            refused = await page.ask("publish", key="!/cred//0//x", payload="x")
            assert (refused["code"], "--allow-publish" in refused["error"]) == ("EPERM", True)
            assert (await page.ask("subscribe", pattern=""))["type"] == "result"

    asyncio.run(use())


def test_the_allow_lists_decide(bus: Daemon, tmp_path: Path) -> None:
    uid = os.geteuid()

    async def use(gateway: Gateway) -> None:
        async with (await gateway.login()).session() as page:
            for pattern, expected in {
                "net/": "result",
                "net/link/*": "result",
                "net": "error",
                "": "error",
                "*/link/": "error",
                f"!/cred//{uid}//": "result",
                "!/cred///": "error",
            }.items():
                assert (await page.ask("subscribe", pattern=pattern))["type"] == expected, pattern
            for key, expected in {"lab/x": "result", "lab": "error", "net/x": "error"}.items():
                assert (await page.ask("publish", key=key, payload=""))["type"] == expected, key

    with Gateway(tmp_path, bus.path, "--allow", "net/", "--allow", f"!/cred//{uid}//", "--allow-publish", "lab/*") as gateway:
        asyncio.run(use(gateway))


def test_read_only_allows_no_publication(bus: Daemon, tmp_path: Path) -> None:
    async def use(gateway: Gateway) -> None:
        async with (await gateway.login()).session() as page:
            assert (await page.next("hello"))["publish"] == []
            assert (await page.ask("publish", key="a", payload=""))["code"] == "EPERM"

    with Gateway(tmp_path, bus.path, "--read-only") as gateway:
        asyncio.run(use(gateway))


def test_the_bus_refuses_what_its_rules_deny(daemon: StartDaemon, tmp_path: Path) -> None:
    config = tmp_path / "bus.toml"
    config.write_text('[[policy]]\nkeys = "closed/"\npublish = "deny"\nsubscribe = "deny"\n')
    bus = daemon("-C", str(config))

    async def use(gateway: Gateway) -> None:
        async with (await gateway.login()).session() as page:
            assert (await page.ask("subscribe", pattern="closed/"))["code"] == "EPERM"
            assert (await page.ask("publish", key="closed/x", payload=""))["code"] == "EPERM"
            assert (await page.ask("subscribe", pattern="open/"))["type"] == "result"
            config.write_text(config.read_text().replace("closed/", "open/"))
            bus.process.send_signal(signal.SIGHUP)
            revoked = await page.next("error")  # no request waits for it
            assert (revoked["code"], revoked.get("id")) == ("EPERM", None)

    with Gateway(tmp_path, bus.path) as gateway:
        asyncio.run(use(gateway))


WRONG: dict[str, tuple[str, int | None]] = {
    "": ("not JSON", None),
    "{": ("not JSON", None),
    "[" * 100_000: ("not JSON", None),
    "[]": ("not a JSON object", None),
    "{}": ("id: must be a whole number", None),
    '{"id": true}': ("id: must be a whole number", None),
    '{"id": -1}': ("id: must be a whole number", None),
    '{"id": 1}': ("type: missing", 1),
    '{"id": 1, "type": ["publish"]}': ("type: missing or not text", 1),
    '{"id": 1, "type": "shout"}': ("type: 'shout'; must be one of subscribe", 1),
    '{"id": 1, "type": "stats", "pattern": "x"}': ("stats: unknown member 'pattern'", 1),
    '{"id": 1, "type": "subscribe"}': ("subscribe: pattern: missing", 1),
    '{"id": 1, "type": "subscribe", "pattern": 5}': ("subscribe: pattern: must be text", 1),
    '{"id": 1, "type": "subscribe", "pattern": "a\\u0000b"}': ("subscribe: pattern: has a NUL", 1),
    '{"id": 1, "type": "subscribe", "pattern": "\\ud83d"}': ("subscribe: pattern: has a surrogate", 1),
    '{"id": 1, "type": "unsubscribe", "pattern": "x"}': ("not subscribed to it", 1),
    '{"id": 1, "type": "publish", "key": "a"}': ("publish: needs either payload or payload_base64", 1),
    '{"id": 1, "type": "publish", "key": "a", "payload": "", "payload_base64": ""}': ("publish: needs either", 1),
    '{"id": 1, "type": "publish", "key": "a", "payload": null}': ("publish: payload: missing", 1),
    '{"id": 1, "type": "publish", "key": "a", "payload": "\\udcff"}': ("publish: payload: has a surrogate", 1),
    '{"id": 1, "type": "publish", "key": "a", "payload_base64": "!"}': ("is not Base64", 1),
}


def test_a_wrong_frame_gets_an_error_that_names_the_mistake(gateway: Gateway) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            for text, (words, number) in WRONG.items():
                await page.socket.send_str(text)
                found = await page.next("error")
                assert words in found["error"], text[:80]
                assert found["id"] == number
            await page.socket.send_bytes(b"{}")
            assert "binary" in (await page.next("error"))["error"]
            assert (await page.ask("subscribe", pattern="a/"))["type"] == "result"
            assert "already subscribed" in (await page.ask("subscribe", pattern="a/"))["error"]

    asyncio.run(use())


def test_a_frame_that_is_too_long_ends_the_session(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        async with browser.session() as page:
            await page.socket.send_str("x" * (MAX_FRAME_BYTES + 1))
            await closed(page, 1009)
        async with browser.session() as page:
            assert (await page.ask("stats"))["type"] == "result"

    asyncio.run(use())


async def closed(page: Page, code: int) -> str:
    """Wait for the end of a session; return the reason."""
    while True:
        message = await page.socket.receive(60)
        if message.type == aiohttp.WSMsgType.CLOSE:
            assert message.data == code
            return str(message.extra)
        assert message.type == aiohttp.WSMsgType.TEXT


def test_patterns_and_sessions_are_limited(bus: Daemon, tmp_path: Path) -> None:
    async def use(gateway: Gateway) -> None:
        browser = await gateway.login()
        async with browser.session() as first, browser.session() as second:
            for page in (first, second):
                for number in range(3):
                    assert (await page.ask("subscribe", pattern=f"{number}/"))["type"] == "result"
                assert "already has 3 patterns" in (await page.ask("subscribe", pattern="3/"))["error"]
            await first.ask("unsubscribe", pattern="0/")
            assert (await first.ask("subscribe", pattern="3/"))["type"] == "result"
            async with browser.session() as third:
                assert "too many sessions" in await closed(third, 1013)
        # The slots are free again once the gateway has seen the end.
        while True:
            async with browser.session() as page:
                message = await page.socket.receive(60)
                if message.type == aiohttp.WSMsgType.TEXT:
                    break

    with Gateway(tmp_path, bus.path, "--max-sessions", "2", "--max-patterns", "3") as gateway:
        asyncio.run(use(gateway))


def test_no_message_follows_the_end_of_a_subscription(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await gateway.login()).session() as page:
            await page.ask("subscribe", pattern="a/")
            with Bus.connect(bus.path) as client:
                for _ in range(500):
                    client.publish("a/x", "x")
                client.ping()
                await page.ask("unsubscribe", pattern="a/")
                page.frames.clear()
                wait_for(lambda: client.members("a/x") == (), "the end of the subscription on the bus")
                client.publish("a/x", "late")
                client.ping()
            await page.ask("stats")
            assert page.frames == []

    asyncio.run(use())


def test_sessions_do_not_see_each_others_patterns(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        async with browser.session() as one, browser.session() as two:
            await one.ask("subscribe", pattern="a/")
            await two.ask("subscribe", pattern="b/")
            await one.ask("publish", key="b/x", payload="1")
            await one.ask("publish", key="a/x", payload="2")
            assert (await one.next("message"))["payload"] == "2"
            assert (await two.next("message"))["payload"] == "1"
            await two.ask("stats")
            assert [frame for frame in one.frames + two.frames if frame["type"] == "message"] == []

    asyncio.run(use())


# A slow browser, and a bus that ends


def test_a_slow_browser_loses_messages_gets_gaps_and_costs_bounded_memory(bus: Daemon, tmp_path: Path) -> None:
    count, payload = 1_500, "x" * 10_000

    async def use(gateway: Gateway) -> None:
        browser = await gateway.login()
        async with browser.session() as slow, browser.session() as quick:
            for page in (slow, quick):
                assert (await page.ask("subscribe", pattern="flood/"))["type"] == "result"
            await quick.ask("subscribe", pattern="calm/")
            slow.pause()
            before = memory(gateway.process.pid)
            with Bus.connect(bus.path) as client:
                for number in range(count):
                    client.publish("flood/x", f"{number} {payload}", wait=True)
                client.publish("calm/x", "still here")
                client.ping()
            # Others are served meanwhile.
            await quick.wait_for(lambda frame: frame.get("key") == "calm/x")
            grown = memory(gateway.process.pid) - before
            assert grown < 64 << 20, grown
            slow.resume()
            lost, numbers = 0, list[int]()
            while lost + len(numbers) < count:
                frame = await slow.receive()
                if frame["type"] == "gap":
                    assert (frame["pattern"], frame["lost"] > 0) == ("flood/", True)
                    lost += frame["lost"]
                else:
                    numbers.append(int(frame["payload"].split()[0]))
            assert lost + len(numbers) == count
            assert lost > 0
            assert numbers == sorted(set(numbers))

    with Gateway(tmp_path, bus.path) as gateway:
        asyncio.run(use(gateway))


def memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) * 1024


def test_a_session_survives_a_restart_of_the_bus(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon()

    async def use(gateway: Gateway) -> None:
        async with (await gateway.login()).session() as page:
            await page.ask("subscribe", pattern="a/")
            assert (await page.next("bus"))["state"] == "connected"
            bus.process.send_signal(signal.SIGTERM)
            bus.process.wait(60)
            assert (await page.next("bus"))["state"] == "reconnecting"
            command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-g", "-o", "-a", bus.path]
            with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as successor:
                try:
                    assert (await page.next("reconnected"))["pattern"] == "a/"
                    assert (await page.next("bus"))["state"] == "connected"
                    await page.ask("publish", key="a/again", payload="x")
                    message = await page.next("message")
                    assert (message["key"], message["sender"]["uid"]) == ("a/again", os.geteuid())
                finally:
                    successor.terminate()

    with Gateway(tmp_path, bus.path) as gateway:
        asyncio.run(use(gateway))


def test_without_a_bus_a_session_ends_with_the_reason(tmp_path: Path) -> None:
    async def use(gateway: Gateway) -> None:
        browser = await gateway.login()
        assert (await browser.get("/"))[0] == 200
        async with browser.session() as page:
            assert "no such socket" in await closed(page, 1013)

    with Gateway(tmp_path, str(tmp_path / "none")) as gateway:
        asyncio.run(use(gateway))
        assert "no session: " in gateway.log


def test_the_end_of_the_gateway_ends_sessions_and_their_connections(own_gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await own_gateway.login()).session() as page:
            await page.ask("subscribe", pattern="a/")
            own_gateway.process.send_signal(signal.SIGTERM)
            assert "stops" in await closed(page, 1001)

    asyncio.run(use())
    assert own_gateway.process.wait(60) == 0
    with Bus.connect(bus.path) as client:
        assert client.members("a/x") == ()


def test_a_browser_that_hangs_does_not_keep_the_gateway(own_gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        async with (await own_gateway.login()).session() as page:
            await page.ask("subscribe", pattern="a/")
            page.pause()
            with Bus.connect(bus.path) as client:
                for _ in range(1_500):
                    client.publish("a/x", "x" * 10_000, wait=True)
                client.ping()
            own_gateway.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(own_gateway.process.wait, 60) == 0
            page.resume()

    asyncio.run(use())
    with Bus.connect(bus.path) as client:
        assert client.members("a/x") == ()


def test_a_session_leaves_nothing_behind_on_the_bus(gateway: Gateway, bus: Daemon) -> None:
    async def use() -> None:
        browser = await gateway.login()
        for _ in range(5):
            async with browser.session() as page:
                await page.ask("subscribe", pattern="a/")

    asyncio.run(use())
    with Bus.connect(bus.path) as client:
        wait_for(lambda: client.members("a/x") == (), "the end of all sessions on the bus")
