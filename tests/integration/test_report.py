"""The report in a browser: its charts are drawn, its filters work, text of other users stays text, and nothing is asked of a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus_archive.record.schema import Row
from sbus_archive.report.digest import digest_of
from sbus_archive.report.rendering import page_of
from sbus_archive.tables.storage import read_tables
from tests.support.browser import Chromium, OpenPage, Page
from tests.support.link_states import link_state, other_host
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message
from tests.support.skips import require_program
from tests.support.traffic import GrowingRecord

CHARTS = ("traffic", "keys", "users", "flows", "latency", "losses", "refusals", "link-times")
SETTLED = "document.documentElement.dataset.settled"
HOSTILE = "<img src=x onerror=window.broken=1>"
MARKS = ('<a href="javascript:window.broken=1">link</a>', "<b>bold</b>", "</script><script>window.broken=1</script>", "a\u202eb\x1b[2J")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything on it."""
    require_program("chromium", "chromium")
    folder = tmp_path_factory.mktemp("report")
    rows = GrowingRecord(21).fill(600)
    rows += [message(len(rows) + number, f"{key}/x") for number, key in enumerate((HOSTILE, *MARKS) * 30, 1)]
    wicked: dict[str, Any] = {"code": "EACCES", "reason": HOSTILE, "key": MARKS[2], "unit": HOSTILE}
    rows.append(message(len(rows) + 1)._replace(kind="denial", **wicked))
    root = publish_record(folder, {"alpha": rows, "beta": [message(1, "weather/wind")._replace(uid=4_242)]})
    file = folder / "report.html"
    file.write_text(page_of(digest_of(read_tables(root), {1000: HOSTILE}.get, 1).data))
    return file


@pytest.fixture(scope="module")
def opened(chromium: Chromium, page: Path) -> Iterator[OpenPage]:
    """That page, with all charts."""
    with OpenPage(chromium, page) as found:
        yield found


def visit(chromium: Chromium, file: Path, look: Callable[[Page], Awaitable[None]], *, before: str | None = None, **options: Any) -> Page:
    """Open *file*, in a page where the program *before* has run, and *look* at it.

    Return the page, which has complained of nothing and asked for nothing but itself.
    """

    async def run() -> Page:
        async with chromium.page() as found:
            if before is not None:
                await found.ask("Page.addScriptToEvaluateOnNewDocument", source=before)
            await found.open(file, **options)
            await look(found)
            return found

    found = asyncio.run(run())
    assert found.complaints == []
    assert set(found.requests) == {file.as_uri()}
    return found


def test_all_charts_are_drawn_and_the_page_is_compressed_to_half(opened: OpenPage, page: Path) -> None:
    async def look(found: Page) -> None:
        for chart in CHARTS:
            assert await found.evaluate(f"document.querySelectorAll('#{chart} .main-svg').length") > 0, chart
            assert await found.evaluate(f"document.getElementById('{chart}').data.length") > 0, chart
        for table in ("calls", "security", "disconnects", "units", "covers", "relay", "links"):
            assert await found.evaluate(f"document.querySelectorAll('#{table} tbody tr').length") > 0, table
        assert await found.evaluate("document.getElementById('period').textContent.includes('alpha, beta')")

    opened.visit(look)
    assert page.stat().st_size < 3 << 20


def test_a_browser_that_cannot_unpack_the_charts_shows_everything_else(chromium: Chromium, page: Path) -> None:
    async def look(found: Page) -> None:
        for chart in CHARTS:
            assert "too old to draw" in await found.evaluate(f"document.getElementById('{chart}').textContent"), chart
        for table in ("calls", "security", "disconnects", "units", "covers", "relay", "links"):
            assert await found.evaluate(f"document.querySelectorAll('#{table} tbody tr').length") > 0, table
        assert await found.evaluate("document.querySelectorAll('.tile').length") == 9
        select = "document.getElementById('unit')"
        await found.evaluate(f"{select}.value = 'bytes', {select}.dispatchEvent(new Event('change'))")
        assert "too old to draw" in await found.evaluate("document.getElementById('keys').textContent")

    visit(chromium, page, look, before="delete window.DecompressionStream")


def test_paper_shows_all_charts_though_they_were_not_in_sight(chromium: Chromium, page: Path) -> None:
    async def look(found: Page) -> None:
        assert await found.evaluate("document.querySelectorAll('#refusals .main-svg').length") == 0
        await found.evaluate("dispatchEvent(new Event('beforeprint'))")
        for chart in CHARTS:
            assert await found.evaluate(f"document.querySelectorAll('#{chart} .main-svg').length") > 0, chart

    # A browser that is never idle, and has no room for more than the head.
    visit(chromium, page, look, before="window.requestIdleCallback = () => 0", mark="drawn", height=200)


def test_filters_change_every_chart_and_can_be_reset(opened: OpenPage) -> None:
    async def look(found: Page) -> None:
        async def choose(name: str, words: str) -> None:
            await found.evaluate(
                f"""(() => {{
                    const select = document.getElementById({name!r});
                    select.value = [...select.options].find((option) => option.text === {words!r}).value;
                    select.dispatchEvent(new Event("change"));
                }})()"""
            )
            await found.wait_for(SETTLED)

        async def choose_all() -> None:
            await found.evaluate("document.getElementById('clear').click()")
            await found.wait_for(SETTLED)

        async def tiles() -> dict[str, str]:
            texts = "[...document.querySelectorAll('.tile')].map((tile) => [tile.children[1].textContent, tile.children[0].textContent])"
            return dict(await found.evaluate(texts))

        before = await tiles()
        await choose("user", "uid 4242")
        assert (await tiles())["messages"] == "1"
        assert await found.evaluate("document.getElementById('traffic').data.map((trace) => trace.name)") == ["weather/wind"]
        assert await found.evaluate("document.getElementById('keys').data[0].x") == [1]
        assert await found.evaluate("document.querySelectorAll('#security tbody tr').length") == 0
        assert await found.evaluate("document.querySelectorAll('#units tbody tr').length") == 1
        await choose("key", "a/b")
        assert (await tiles())["messages"] == "0"
        assert await found.evaluate("document.querySelector('#traffic .none').textContent") == "No data."
        await choose_all()
        assert await tiles() == before
        await choose("key", "rpc/echo")
        assert set(await found.evaluate("[...document.querySelectorAll('#calls tbody tr')].map((row) => row.cells[0].textContent)")) == {
            "echo"
        }
        await choose("host", "beta")
        assert (await tiles())["calls"] == "0"
        await choose_all()
        await choose("unit", "bytes")
        assert "B" in await found.evaluate("document.getElementById('keys').data[0].text.at(-1)")
        await choose("unit", "messages")

    opened.visit(look)


def test_untrusted_text_is_shown_as_text(opened: OpenPage) -> None:
    async def look(found: Page) -> None:
        assert await found.evaluate("window.broken") is None
        assert await found.evaluate("document.querySelectorAll('img, main b, a:not([href^=\"#\"])').length") == 0
        shown = await found.evaluate("document.querySelector('#security tbody').textContent")
        assert HOSTILE in shown
        assert MARKS[2] in shown
        # The chart library draws labels in SVG: the tags that it knows must not have become any there.
        assert await found.evaluate("document.querySelectorAll('svg a, svg tspan[style*=bold]').length") == 0
        labels = await found.evaluate("[...document.querySelectorAll('#keys .ytick text')].map((label) => label.textContent).join(' ')")
        assert "<img" in labels
        assert "\u202e" not in await found.evaluate("document.body.innerText")
        assert "\\u{202e}" in await found.evaluate("document.getElementById('key').innerText")

    opened.visit(look)


def test_other_hosts_are_in_a_table_and_a_chart_with_marked_losses(chromium: Chromium, tmp_path: Path) -> None:
    require_program("chromium", "chromium")

    def row(seq: int, name: str, **counters: int) -> Row:
        value = link_state(host=name, started=NOON / 1e9, hosts=[other_host("beta"), other_host("gamma") | counters])
        return message(seq, "link/state", json.dumps(value).encode(), ts=NOON + seq * 60 * 10**9)._replace(uid=0)

    rows = [row(1, "alpha"), row(2, "alpha", messages=5, bytes=900), row(3, "alpha", messages=12, bytes=2_000, lost=3, unknown_losses=1)]
    record = {"alpha": rows, "h2": [row(1, "other")], "h3": [message(1, ts=NOON)]}
    file = tmp_path / "report.html"
    file.write_text(page_of(digest_of(read_tables(publish_record(tmp_path, record)), lambda _: None, 1).data))
    cells = "[...document.querySelectorAll('#links tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    traces = (
        "document.getElementById('link-times').data.map((trace) => [trace.name, trace.x.length, trace.y.at(-1), trace.customdata.at(-1)])"
    )

    async def look(found: Page) -> None:
        async def choose(host: str) -> None:
            select = "document.getElementById('host')"
            await found.evaluate(f"{select}.value = {host!r}, {select}.dispatchEvent(new Event('change'))")
            await found.wait_for(SETTLED)

        shown = {(line[0], line[1]): line[2:] for line in await found.evaluate(cells)}
        assert shown["gamma", "alpha"] == ["2 min", "12", "1.95 KiB", "3", "1", "0", "0", "0", "–", "–"]
        assert shown["link itself", "alpha"] == ["2 min", "–", "–", "–", "–", "–", "0", "0", "0", "0 B"]
        assert shown["gamma", "h2 (R/other)"][:2] == ["0 s", "0"]
        assert await found.evaluate(traces) == [["gamma", 2, 7, "7"], ["losses", 1, 7, "3 lost, an unknown number lost 1 time"]]
        await choose("2")
        assert (await found.evaluate("document.getElementById('links-note').textContent")).startswith("The record has no state")
        assert await found.evaluate("document.getElementById('links').hidden && document.getElementById('link-times').hidden")
        await choose("0")
        assert not await found.evaluate("document.getElementById('links').hidden || document.getElementById('link-times').hidden")
        assert len(await found.evaluate(cells)) == 3

    visit(chromium, file, look)


def test_paper_shows_whole_tables(chromium: Chromium, page: Path) -> None:
    async def look(found: Page) -> None:
        await found.ask("Emulation.setEmulatedMedia", media="print")
        await found.wait_for("document.documentElement.dataset.paper")
        boxes = "[...document.querySelectorAll('.scroll')]"
        cut = "box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight"
        sizes = "[box.id, box.scrollWidth, box.clientWidth, box.scrollHeight, box.clientHeight]"
        assert await found.evaluate(f"{boxes}.filter((box) => {cut}).map((box) => {sizes})") == []
        assert await found.evaluate("getComputedStyle(document.querySelector('.bar')).display") == "none"

    visit(chromium, page, look, width=718, height=1_000)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone_and_follows_the_light(chromium: Chromium, page: Path, is_dark: bool) -> None:
    async def look(found: Page) -> None:
        assert await found.evaluate("document.documentElement.scrollWidth <= innerWidth")
        widest = "Math.max(...[...document.querySelectorAll('.chart .main-svg')].map((svg) => svg.getBoundingClientRect().right))"
        assert await found.evaluate(widest) <= 390
        light = await found.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light == ("rgb(18, 21, 26)" if is_dark else "rgb(246, 247, 249)")
        paper = await found.evaluate("document.getElementById('traffic').layout.paper_bgcolor")
        assert paper == ("#1b2027" if is_dark else "#ffffff")

    visit(chromium, page, look, width=390, height=800, is_dark=is_dark)


def test_a_page_without_records_says_so(chromium: Chromium, tmp_path: Path) -> None:
    require_program("chromium", "chromium")
    record: dict[str, list[Row]] = {}
    file = tmp_path / "report.html"
    file.write_text(page_of(digest_of(read_tables(publish_record(tmp_path, record)), lambda _: None, 1).data))

    async def look(found: Page) -> None:
        assert await found.evaluate("document.getElementById('period').textContent") == "No rows were recorded in this period."
        assert await found.evaluate("document.querySelectorAll('.none').length") > 8

    visit(chromium, file, look)
