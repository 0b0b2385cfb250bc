"""The page of sbus-web in a browser: its views work, by keyboard too, text of other users stays text, and only the gateway is asked."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sbus import Bus
from tests.support.browser import Chromium, Page
from tests.support.daemons import Daemon, StartDaemon
from tests.support.shared_bus import SharedBus
from tests.support.web_gateway import Gateway

HOSTILE = "<img src=x onerror=window.broken=1>"
MARKS = (
    HOSTILE,
    "</td><script>window.broken=1</script>",
    "<b>bold</b>",
    '"><svg onload=window.broken=1>',
    "a\u202eb\x1b[2J",
    "javascript:window.broken=1",
)
TABS = ("messages", "connections", "top", "publish")
CONNECTED = "document.getElementById('state')?.dataset.state === 'connected'"
ROWS = "[...document.querySelectorAll('#list tr')]"

ENTER, TAB, LEFT, RIGHT, END = ("Enter", 13), ("Tab", 9), ("ArrowLeft", 37), ("ArrowRight", 39), ("End", 35)


Look = Callable[[Page], Awaitable[None]]
Visit = Callable[[Gateway, Look], Page]


SHARES_BUS = True


@pytest.fixture(scope="module")
def gateway(module_bus: SharedBus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for all tests that do not end it, or its bus: each page is a login of its own."""
    with Gateway(tmp_path_factory.mktemp("gateway"), module_bus.daemon.path) as made:
        yield made


@pytest.fixture
def visit(chromium: Chromium, shared_bus: Daemon) -> Visit:
    """Open the link of a gateway in a page, and look at it."""
    return lambda gateway, look: opened(chromium, gateway, look)


def opened(chromium: Chromium, gateway: Gateway, look: Look) -> Page:
    """Open the link in a page, and *look* at it. Return it."""

    async def run() -> Page:
        async with chromium.page() as page:
            await page.ask("Page.navigate", url=gateway.take_link())
            await page.wait_for(CONNECTED)
            gateway.link_used()
            await look(page)
            return page

    return asyncio.run(run())


def check(gateway: Gateway, page: Page) -> None:
    """Fail if the page has complained, run a script of another user, or asked something else than the gateway."""
    assert page.complaints == []
    assert {url.split("/")[2] for url in page.requests} == {gateway.host}


async def subscribe(page: Page, pattern: str) -> None:
    # The status of an earlier subscription would look like that of this one.
    await page.evaluate(
        "document.getElementById('subscribe-status').textContent = '',"
        f"document.getElementById('pattern').value = {json.dumps(pattern)}, document.querySelector('#subscribe button').click()"
    )
    await page.wait_for("document.getElementById('subscribe-status').textContent.startsWith('Subscribed')")


async def choose(page: Page, tab: str) -> None:
    await page.evaluate(f"document.getElementById('tab-{tab}').click()")


def test_the_link_leaves_neither_token_nor_key_in_the_page(gateway: Gateway, visit: Visit) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("location.href") == f"{gateway.url}/"
        history = await page.ask("Page.getNavigationHistory")
        visited = [entry["url"] for entry in history["entries"]]
        assert visited[-1] == f"{gateway.url}/"
        assert not [url for url in visited if "token" in url or "key" in url]
        assert await page.evaluate("document.cookie") == ""
        await page.ask("Page.reload")
        await page.wait_for(CONNECTED)

    check(gateway, visit(gateway, look))


def test_live_messages_connections_rates_and_publications(gateway: Gateway, bus: Daemon, visit: Visit) -> None:
    async def look(page: Page) -> None:
        await subscribe(page, "net/")
        with Bus.connect(bus.path, name="weather station") as client:
            client.publish("net/link/eth0", '{"state": "up"}')
            client.publish(b"net/\xff", b"\xff\x00\x01")
            client.ping()
            await page.wait_for(f"{ROWS}.length === 2")
            cells = await page.evaluate(f"{ROWS}.map((row) => [...row.cells].map((cell) => cell.textContent))")
            assert [row[1] for row in cells] == ["net/\\xff", "net/link/eth0"]
            assert [row[3] for row in cells] == ["3 B: ff 00 01", '{"state": "up"}']
            assert "connection" in cells[0][2]
            await choose(page, "connections")
            await page.wait_for("document.querySelector('#connections tbody').textContent.includes('weather station')")
            await choose(page, "top")
            await page.wait_for("document.querySelectorAll('#top tbody tr').length === 2")
            for _ in range(100):
                client.publish("elsewhere", "x" * 1000)
            client.ping()
            # The first rates that are known are of the time in which this was sent, or of a later one.
            await page.wait_for("document.querySelector('#tiles b').textContent !== '-'")
            rows = await page.evaluate(
                "[...document.querySelectorAll('#top tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
            )
            assert {row[2] for row in rows} == {"weather station", "sbus-web"}
            assert all("-" not in row[5:] for row in rows)
            await choose(page, "publish")
            with client.subscribe("lab/") as subscription:
                await page.evaluate(
                    "document.getElementById('publish-key').value = 'lab/x', document.getElementById('publish-payload').value = 'grün\\n',"
                    "document.querySelector('#publish-form button').click()"
                )
                await page.wait_for("document.getElementById('published').textContent.includes('lab/x: delivered to 1 connection')")
                (message,) = subscription.receive_many(timeout=60)
                assert getattr(message, "payload", None) == "grün\n".encode()

    check(gateway, visit(gateway, look))


def test_rates_and_texts(gateway: Gateway, visit: Visit) -> None:
    """The modules that compute them, without a bus."""

    async def look(page: Page) -> None:
        earlier = {"time": 10.0, "connections": [{"id": 1, "lost_packets": 5}, {"id": 2, "lost_packets": 9}]}
        later = {"time": 12.0, "connections": [{"id": 1, "lost_packets": 11}, {"id": 2, "lost_packets": 3}, {"id": 3, "lost_packets": 8}]}
        for before, expected in ((earlier, [3, None, 4]), (None, [None] * 3), (later, [None] * 3)):
            words = f"m.withRates({json.dumps(before)}, {json.dumps(later)}).map((row) => row.lost_packets_per_second)"
            assert await page.evaluate(f"import('/rates.js').then((m) => {words})") == expected
        rows = json.dumps([{"id": 1, "x": None}, {"id": 2, "x": 1}, {"id": 3, "x": 2}, {"id": 4}])
        assert await page.evaluate(f"import('/rates.js').then((m) => m.sorted({rows}, 'x').map((row) => row.id))") == [3, 2, 1, 4]
        assert await page.evaluate(f"import('/rates.js').then((m) => [m.total({rows}, 'x'), m.total({rows}, 'y')])") == [3, None]
        for call, text in {
            "visible('a\\udcff\\ud800\\u200b\\n')": "a\\xff\\u{d800}\\u{200b}\\x0a",
            "visibleLines('a\\n\\tb\\r')": "a\n\tb\\x0d",
            "hexadecimal('/wAB', 2)": "ff 00",
            "base64Size('/w==')": 1,
            "size(1536)": "1.5 KiB",
            "rate(0.25)": "0.3",
            "rate(null)": "-",
            "duration(7300)": "2 h",
            "plural(1, 'message')": "1 message",
        }.items():
            assert await page.evaluate(f"import('/text.js').then((m) => m.{call})") == text, call

    check(gateway, visit(gateway, look))


def test_text_of_other_users_is_only_text(gateway: Gateway, bus: Daemon, visit: Visit) -> None:
    async def look(page: Page) -> None:
        for number, mark in enumerate(MARKS):
            await subscribe(page, f"{number}/{mark}/")
        with Bus.connect(bus.path, name=HOSTILE) as client:
            for number, mark in enumerate(MARKS):
                client.publish(f"{number}/{mark}/x", mark)
            client.ping()
            await page.wait_for(f"{ROWS}.length === {len(MARKS)}")
            shown = await page.evaluate(f"{ROWS}.map((row) => row.cells[3].textContent)")
            assert shown[-1] == HOSTILE
            assert "a\\u{202e}b\\x1b[2J" in shown
            for tab in ("connections", "top"):
                await choose(page, tab)
                await page.wait_for(f"document.querySelector('#{tab} tbody').textContent.includes({json.dumps(HOSTILE)})")
            await choose(page, "publish")
            await page.evaluate(f"document.getElementById('publish-key').value = {json.dumps('!/' + HOSTILE)}")
            await page.evaluate("document.querySelector('#publish-form button').click()")
            await page.wait_for(f"document.getElementById('published').textContent.includes({json.dumps(HOSTILE)})")
        assert await page.evaluate("typeof window.broken") == "undefined"
        assert await page.evaluate("document.querySelectorAll('img, b:not(.tile b), svg, body script, a, [onerror], [onload]').length") == 0

    check(gateway, visit(gateway, look))


def test_the_keyboard_is_enough(gateway: Gateway, bus: Daemon, visit: Visit) -> None:
    async def look(page: Page) -> None:
        async def focused() -> str:
            return str(await page.evaluate("document.activeElement.id || document.activeElement.textContent"))

        await page.evaluate("document.getElementById('tab-messages').focus()")
        await page.press(*TAB)
        assert await focused() == "pattern"
        await page.type("a/")
        await page.press(*ENTER)
        await page.wait_for("document.querySelectorAll('#patterns li').length === 1")
        for expected in ("Subscribe", "×"):
            await page.press(*TAB)
            assert await focused() == expected
        assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Unsubscribe from a/"
        await page.press(*ENTER)
        await page.wait_for("document.getElementById('subscribe-status').textContent === 'Unsubscribed from a/.'")
        assert await focused() == "pattern"
        with Bus.connect(bus.path) as client:
            assert client.members("a/x") == ()
        await page.evaluate("document.getElementById('tab-messages').focus()")
        for key, tab in (
            (RIGHT, "connections"),
            (RIGHT, "top"),
            (LEFT, "connections"),
            (END, "publish"),
            (RIGHT, "messages"),
            (LEFT, "publish"),
        ):
            await page.press(*key)
            assert await focused() == f"tab-{tab}"
            assert await page.evaluate("[...document.querySelectorAll('[role=tabpanel]:not([hidden])')].map((each) => each.id)") == [tab]
        await page.press(*TAB)
        assert await focused() == "publish-key"
        await page.type("b/c")
        await page.press(*ENTER)
        await page.wait_for("document.getElementById('published').textContent.includes('b/c: delivered to no connection')")

    check(gateway, visit(gateway, look))


def test_everything_that_can_be_used_has_a_name(gateway: Gateway, visit: Visit) -> None:
    async def look(page: Page) -> None:
        await subscribe(page, "a/")
        used = {"button", "textbox", "searchbox", "combobox", "tab", "tabpanel", "table", "list", "region"}
        seen = set()
        for tab in TABS:
            await choose(page, tab)
            tree = (await page.ask("Accessibility.getFullAXTree"))["nodes"]
            for node in tree:
                role = node.get("role", {}).get("value")
                if role in used and not node["ignored"]:
                    seen.add(role)
                    assert node["name"]["value"] or role == "table", node
        assert {"button", "textbox", "searchbox", "combobox", "tab", "tabpanel", "region"} <= seen

    check(gateway, visit(gateway, look))


def test_the_list_is_bounded_can_be_filtered_and_paused(gateway: Gateway, bus: Daemon, visit: Visit) -> None:
    async def look(page: Page) -> None:
        def counts(words: str) -> str:
            return f"document.getElementById('counts').textContent.includes({words!r})"

        await subscribe(page, "")
        with Bus.connect(bus.path) as client:
            for first in range(0, 1_200, 400):
                for number in range(first, first + 400):
                    client.publish(f"n/{number}", "odd" if number % 2 else "even", wait=True)
                client.ping()
                # The gateway keeps 1,024 messages for a browser that does not read fast enough, and discards more.
                await page.wait_for(counts(f"{first + 400:,} messages received"))
            await page.wait_for(f"{counts('1,200 messages received · 0 lost')} && {ROWS}[0].cells[1].textContent === 'n/1199'")
            assert await page.evaluate(f"{ROWS}.length") == 500
            await page.evaluate(
                "document.getElementById('filter').value = 'EVEN', document.getElementById('filter').dispatchEvent(new Event('input'))"
            )
            assert await page.evaluate(f"{ROWS}.filter((row) => !row.hidden).length") == 250
            await page.evaluate("document.getElementById('pause').click()")
            client.publish("n/while-paused", "even")
            client.ping()
            await page.wait_for(counts("paused, 1 new"))
            assert await page.evaluate(f"{ROWS}[0].cells[1].textContent") == "n/1199"
            await page.evaluate("document.getElementById('pause').click()")
            await page.wait_for(f"{ROWS}[0].cells[1].textContent === 'n/while-paused'")
            await page.evaluate("document.getElementById('clear').click()")
            await page.wait_for(f"{ROWS}.length === 0 && !document.getElementById('list-empty').hidden")

    check(gateway, visit(gateway, look))


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window(gateway: Gateway, bus: Daemon, visit: Visit, width: int) -> None:
    async def look(page: Page) -> None:
        await page.resize(width)
        await subscribe(page, "long/")
        with Bus.connect(bus.path, name="n" * 64) as client:
            client.publish("long/" + "k" * 300, "p" * 3_000)
            client.publish("long/" + "k/" * 150, "\n".join("line" for _ in range(50)))
            client.ping()
            await page.wait_for(f"{ROWS}.length === 2")
            colours = set()
            for is_dark in (False, True):
                await page.resize(width, is_dark=is_dark)
                colours.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
                for tab in TABS:
                    await choose(page, tab)
                    if tab in {"connections", "top"}:
                        await page.wait_for(f"document.querySelectorAll('#{tab} tbody tr').length === 2")
                    assert await page.evaluate("document.documentElement.scrollWidth") <= width, tab
            assert len(colours) == 2
        await choose(page, "messages")
        await page.resize(width, media="print", is_dark=True)
        assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert await page.evaluate("getComputedStyle(document.querySelector('[role=tablist]')).display") == "none"
        assert await page.evaluate("getComputedStyle(document.querySelector('#messages .scroll')).maxHeight") == "none"
        assert await page.evaluate(f"{ROWS}.every((row) => row.getBoundingClientRect().height > 0)")

    check(gateway, visit(gateway, look))


def test_a_restart_of_the_bus_is_shown_where_messages_may_be_missing(daemon: StartDaemon, tmp_path: Path, visit: Visit) -> None:
    bus = daemon()

    async def look(page: Page) -> None:
        await subscribe(page, "a/")
        bus.process.terminate()
        bus.process.wait(60)
        await page.wait_for("document.getElementById('state').dataset.state === 'reconnecting'")
        assert "unavailable" in await page.evaluate("document.getElementById('alert').textContent")
        Path(bus.path).unlink(missing_ok=True)
        Path(bus.path).symlink_to(daemon().path)
        await page.wait_for(CONNECTED)
        await page.wait_for(f"{ROWS}.some((row) => row.className === 'gap' && row.textContent.includes('unavailable for'))")
        assert await page.evaluate("document.getElementById('alert').hidden")

    with Gateway(tmp_path, bus.path) as gateway:
        check(gateway, visit(gateway, look))


def test_the_page_connects_again_and_says_when_its_login_has_ended(bus: Daemon, tmp_path: Path, visit: Visit) -> None:
    former = Gateway(tmp_path, bus.path)

    async def look(page: Page) -> None:
        await subscribe(page, "a/")
        former.stop()
        await page.wait_for("document.getElementById('state').dataset.state === 'reconnecting'")
        with Gateway(tmp_path, bus.path, "--listen", former.host) as successor:
            await page.wait_for("document.getElementById('state').dataset.state === 'closed'")
            assert "login has ended" in await page.evaluate("document.getElementById('alert').textContent")
            await page.ask("Page.navigate", url=successor.take_link())
            await page.wait_for(f"{CONNECTED} && document.querySelectorAll('#patterns li').length === 1")
            await page.wait_for("document.getElementById('subscribe-status').textContent === 'Subscribed to a/.'")
            with Bus.connect(bus.path) as client:
                client.publish("a/x", "kept")
                client.ping()
            await page.wait_for(f"{ROWS}.length === 1")

    with former:
        visit(former, look)


def test_a_page_of_another_port_cannot_use_the_login(gateway: Gateway, visit: Visit) -> None:
    """It gets the cookie, because it has the same address, and may know the port."""
    cookies = []
    page = (
        f"<script>const socket = new WebSocket('ws://{gateway.host}/session', ['sbus-web']);"
        "socket.onopen = () => { document.title = 'open' }; socket.onerror = () => { document.title = 'refused' };</script>"
    )

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    async def look(found: Page) -> None:
        await found.ask("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/")
        await found.wait_for("document.title !== ''")
        assert await found.evaluate("document.title") == "refused"
        assert await found.evaluate("localStorage.length") == 0

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            visit(gateway, look)
        finally:
            server.shutdown()
    assert cookies[0].startswith("sbus-web-")  # the reason for the key
    assert "origin 'http://127.0.0.1:" in gateway.log
