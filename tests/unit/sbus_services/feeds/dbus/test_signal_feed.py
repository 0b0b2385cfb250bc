"""The feed of D-Bus signals on a real D-Bus bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Variant
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus_programs.config.feed_dbus import MAX_FIELDS, MAX_TEXT_BYTES, DBusFeedSettings, SignalRule
from sbus_services.feeds.dbus import signal_feed
from sbus_services.feeds.dbus.connection import DBusSignal, cancel
from sbus_services.feeds.dbus.signal_feed import MAX_PART_BYTES, SignalFeed, key_maker, key_part
from tests.support.dbus_services import DBusDaemon, DBusService, dbus_daemon
from tests.support.feed_outputs import WAIT_SECONDS, RecordingOutput
from tests.support.skips import require_program
from tests.support.state_feeds import run

pytestmark = pytest.mark.slow

NAME = "example.Lab"
INTERFACE = "example.Lab.Sensor"
VALUE = "dbus/lab/one/Value"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DBusDaemon]:
    require_program("dbus-daemon", "dbus-daemon")
    with dbus_daemon(tmp_path) as running:
        yield running


class Fixture:
    """A feed, the service that it follows, and what it publishes."""

    def __init__(self, daemon: DBusDaemon, *rules: SignalRule, rate: int = 100_000) -> None:
        self.daemon = daemon
        self.output = RecordingOutput()
        self.said: list[str] = []
        self.ready: list[str] = []
        self.service: DBusService
        settings = DBusFeedSettings(rate, rules or (SignalRule("dbus/lab/{object}/{member}", NAME, INTERFACE),))
        self.feed = SignalFeed(settings, self.output, daemon.address, self.said.append, self.ready.append)

    async def wait(self, condition: Any) -> None:
        """Wait until *condition* holds."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)

    def emit(
        self, member: str = "Value", signature: str = "", *body: Any, path: str = "/lab/one", interface: str = INTERFACE
    ) -> asyncio.Future[Any]:
        """Send a signal of the service."""
        return self.service.emit(path, interface, member, signature, *body)


@asynccontextmanager
async def feeding(daemon: DBusDaemon, *rules: SignalRule, rate: int = 100_000) -> AsyncIterator[Fixture]:
    """Run a feed that is connected."""
    fixture = Fixture(daemon, *rules, rate=rate)
    fixture.service = await DBusService.connect(daemon.address, NAME)
    task = asyncio.ensure_future(fixture.feed.run())
    await fixture.wait(lambda: fixture.ready or task.done())
    yield fixture
    if task.done():
        task.result()
    await cancel(task)
    fixture.service.close()


def test_signals_have_their_arguments_in_json(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            fixture.emit("Value", "dba{sv}ay(ix)", 21.5, True, {"unit": Variant("s", "°C")}, b"\xff\0", [-1, 1 << 60])
            await fixture.output.wait_for(lambda: fixture.output.last(VALUE))
            payload = fixture.output.last(VALUE)
            assert payload.pop("time") > 1e9
            assert payload.pop("unique") == fixture.service.unique_name
            assert payload == {
                "event": "signal",
                "sender": NAME,
                "path": "/lab/one",
                "interface": INTERFACE,
                "member": "Value",
                "signature": "dba{sv}ay(ix)",
                "args": [21.5, True, {"unit": {"type": "s", "data": "°C"}}, "/wA=", [-1, 1 << 60]],
                "omitted": False,
            }
            assert fixture.output.published[0][0] == "dbus/state"

    run(test)


def test_tables_select_by_member_path_and_first_argument(daemon: DBusDaemon) -> None:
    rules = (
        SignalRule("dbus/one/{arg0}", NAME, INTERFACE, member="Value", path="/lab/one"),
        SignalRule("dbus/all/{path}", NAME, INTERFACE, path_namespace="/lab"),
        SignalRule("dbus/named/{arg1}", NAME, INTERFACE, arg0="it's,a'b"),
    )

    async def test() -> None:
        async with feeding(daemon, *rules) as fixture:
            fixture.emit("Value", "s", "a/b*")
            fixture.emit("Other", "s", "x")
            fixture.emit("Value", "i", 1, path="/laboratory")
            fixture.emit("Value", "sv", "it's,a'b", Variant("s", "-"), path="/x")
            fixture.emit("Value", "s", "end", path="/lab")
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/all/%2Flab"))
            keys = [key for key, _ in fixture.output.published if key != "dbus/state"]
            one = "dbus/all/%2Flab%2Fone"
            assert keys == ["dbus/one/a%2Fb%2A", one, one, "dbus/named/%2D", "dbus/all/%2Flab"]

    run(test)


def test_only_the_owner_of_the_name_is_heard(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            attacker = await DBusService.connect(daemon.address, "example.Attacker")
            own = {attacker.unique_name, fixture.service.unique_name}
            for victim in {name for name in await attacker.ask("ListNames") if name.startswith(":")} - own:
                attacker.emit("/lab/one", INTERFACE, "Value", "s", "forged", destination=victim)
            attacker.emit("/lab/one", INTERFACE, "Value", "s", "forged")
            await fixture.wait(lambda: fixture.feed.counters.forged)
            # The name moves: from then on the new owner counts, and the old one does not.
            await fixture.service.disown(NAME)
            await attacker.own(NAME)
            attacker.emit("/lab/one", INTERFACE, "Value", "s", "true")
            await fixture.output.wait_for(lambda: fixture.output.last(VALUE))
            assert fixture.output.last(VALUE)["args"] == ["true"]
            assert fixture.output.events_of(VALUE) == ["signal"]
            attacker.close()

    run(test)


def test_arguments_that_are_too_large_are_omitted(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            await fixture.emit("Value", "ai", list(range(100_000)))
            # Each of these characters takes twelve bytes in JSON.
            await fixture.emit("Value", "s", "\U0001f600" * 20_000)
            await fixture.emit("Value", "ay", bytes(100_000))
            await fixture.output.wait_for(lambda: len(fixture.output.events_of(VALUE)) == 3)
            found = [(payload["args"] is None, payload["omitted"]) for key, payload in fixture.output.published if key == VALUE]
            assert found == [(True, True), (True, True), (False, False)]
            assert fixture.feed.counters.omitted == 2

    run(test)


def test_signals_without_room_are_reported_in_their_place(daemon: DBusDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_feed, "QUEUE_MESSAGES", 10)

    async def test() -> None:
        async with feeding(daemon) as fixture:
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/state"))
            fixture.output.is_open.clear()
            for number in range(100):
                fixture.emit("Value", "i", number)
            await fixture.wait(lambda: fixture.feed.counters.dropped)
            await fixture.service.flush()
            fixture.emit("Last")
            await fixture.wait(lambda: fixture.feed._rules[0].signals == 101)
            fixture.output.is_open.set()
            await fixture.wait(lambda: len(_numbers(fixture.output.published)) == 101)
            # Each signal is there, or counted by the report in its place.
            assert _numbers(fixture.output.published) == list(range(101))
            assert {payload["reason"] for key, payload in fixture.output.published if key == "dbus/lost"} == {"backlog"}

    run(test)


def _numbers(published: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """Return the numbers of the signals that were published or reported as lost, in order; the last signal of the test is number 100."""
    numbers: list[int] = []
    for key, payload in published:
        if key == "dbus/lost":
            numbers.extend(range(len(numbers), len(numbers) + payload["count"]))
        elif key.startswith("dbus/lab/"):
            numbers.append(payload["args"][0] if payload["args"] else 100)
    return numbers


def test_a_restart_of_the_dbus_bus_is_survived_and_reported(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            daemon.stop()
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/lost"))
            assert fixture.output.last("dbus/lost")["reason"] == "disconnected"
            daemon.start()
            fixture.service = await DBusService.connect(daemon.address, NAME)
            await fixture.wait(lambda: len(fixture.ready) == 2)
            fixture.emit("Value", "s", "again")
            await fixture.output.wait_for(lambda: fixture.output.last(VALUE))

    run(test)


def test_the_state_is_published_on_request(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            fixture.emit()
            await fixture.output.wait_for(lambda: fixture.output.last(VALUE))
            for _ in range(50):
                fixture.output.events.put_nowait("request")
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/state").get("requests") == 50)
            state = fixture.output.last("dbus/state")
            assert state["rules"] == [
                {"number": 1, "key": "dbus/lab/{object}/{member}", "sender": NAME, "is_owned": True, "signals": 1},
            ]
            assert (state["connected"], state["published"]) == (True, 1)
            fixture.output.events.put_nowait("reconnect")
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/lost").get("reason") == "reconnect")

    run(test)


def test_signals_of_the_dbus_bus_itself(daemon: DBusDaemon) -> None:
    bus = "org.freedesktop.DBus"

    async def test() -> None:
        async with feeding(daemon, SignalRule("dbus/names/{arg0}", bus, bus, member="NameOwnerChanged")) as fixture:
            await fixture.service.own("example.Another")
            await fixture.output.wait_for(lambda: fixture.output.last("dbus/names/example.Another"))
            assert fixture.output.last("dbus/names/example.Another")["args"] == ["example.Another", "", fixture.service.unique_name]

    run(test)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a/b", "a%2Fb"),
        ("*", "%2A"),
        ("", "-"),
        ("-", "%2D"),
        ("ü", "%C3%BC"),
        (None, "-"),
        ([1], "-"),
        (True, "true"),
        (5, "5"),
        ("!", "%21"),
    ],
)
def test_parts(value: Any, part: str) -> None:
    assert key_part(value) == part


@given(st.one_of(TEXTS, TEXTS.map(lambda text: text * 40)))
def test_a_part_is_one_short_printable_segment(text: str) -> None:
    part = key_part(text)
    assert re.fullmatch(r"(?:[A-Za-z0-9_.~:@+,=-]|%[0-9A-F]{2})+", part)
    assert len(part) <= MAX_PART_BYTES


@given(TEXTS, TEXTS)
def test_different_texts_have_different_parts(one: str, other: str) -> None:
    assert (key_part(one) == key_part(other)) == (one == other)


@given(st.text("%*/ü", min_size=100, max_size=400), st.text("%*/ü", min_size=100, max_size=400))
def test_different_long_texts_have_different_parts(one: str, other: str) -> None:
    assert (key_part(one) == key_part(other)) == (one == other)


def test_the_longest_key_fits() -> None:
    longest = "dbus/a" + "{arg0}" * MAX_FIELDS
    longest += "x" * (MAX_TEXT_BYTES - len(longest))
    assert len(key_maker(longest)("n.N", DBusSignal(":1.5", "/", "x.Y", "Z", "s", ["/" * 5000]))) <= MAX_KEY_BYTES


def test_fields() -> None:
    signal = DBusSignal(":1.5", "/a/b", "x.Y", "Z", "sv", ["first", Variant("i", 7)])
    key = key_maker("dbus/x-{sender}/{path}/{object}/{interface}/{member}/{arg0}.{arg1}/{arg2}")
    assert key("n.N", signal) == "dbus/x-n.N/%2Fa%2Fb/b/x.Y/Z/first.7/-"
