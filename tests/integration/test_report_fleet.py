"""The report of a fleet in a browser: hosts first, comparisons, folded flows, CSV files, paper, and a phone."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.report.coverage import Earlier, earlier_periods
from sbus_archive.report.digest import digest_of
from sbus_archive.report.rendering import page_of
from sbus_archive.tables.storage import TableSnapshot
from tests.integration.test_report import SETTLED, visit
from tests.support.browser import Chromium, OpenPage, Page
from tests.support.fleet_tables import fleet_hosts, fleet_snapshot
from tests.support.records import NOON
from tests.support.skips import require_program
from tests.unit.sbus_archive.tables.test_hours import ENTRY

HOSTILE = (
    "=cmd|' /C calc'!A0",
    "+1<script>window.broken=1</script>",
    "-a\u202eb\x1b[2J",
    "@SUM(1)",
    '"><img src=x onerror=window.broken=1>',
)
TABLES = ("hosts", "calls", "losses-table", "security", "disconnects", "traffic-table", "flows-table", "units", "covers")


def written(folder: Path, hosts: list[str], before: int | None = 1, **options: Any) -> Path:
    """Write the page of *hosts* into *folder*; *before* multiplies the trouble of the day before, None if it has no tables."""
    require_program("chromium", "chromium")
    now = fleet_snapshot(hosts, ENTRY, **options)
    day, week = earlier_periods(now.manifests)
    empty = TableSnapshot({}, {})
    then = empty if before is None else fleet_snapshot(hosts, ENTRY, start=NOON - 24 * HOUR_NS, **(options | {"trouble": before}))
    file = folder / "report.html"
    file.write_text(page_of(digest_of(now, lambda _: None, 1, [Earlier(day, then), Earlier(week, empty)]).data))
    return file


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 150 hosts, of which some have hostile names, and keys too."""
    hosts = [*HOSTILE, *fleet_hosts(145)]
    return written(tmp_path_factory.mktemp("fleet"), hosts, hours=4, trouble=4, keys=40)


@pytest.fixture(scope="module")
def wide(chromium: Chromium, fleet: Path) -> Iterator[OpenPage]:
    """That page in a wide window."""
    with OpenPage(chromium, fleet, width=1400) as page:
        yield page


@pytest.fixture(scope="module")
def small(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    """The page of one host and hour."""
    with OpenPage(chromium, written(tmp_path_factory.mktemp("small"), fleet_hosts(1), hours=1)) as page:
        yield page


async def tiles_of(page: Page) -> dict[str, list[str]]:
    """Return the class and the lines of each tile."""
    script = """Object.fromEntries([...document.querySelectorAll('.tile')].map((tile) =>
        [tile.children[1].textContent, [tile.children[0].className,
            ...[...tile.querySelectorAll('.change')].map((line) => line.textContent)]]))"""
    found: dict[str, list[str]] = await page.evaluate(script)
    return found


async def choose(page: Page, name: str, words: str) -> None:
    """Set the filter *name* to the option with the text *words*."""
    select = f"document.getElementById({name!r})"
    option = f"[...{select}.options].find((option) => option.text === {words!r})"
    await page.evaluate(f"{select}.value = {option}.value, {select}.dispatchEvent(new Event('change'))")
    await page.wait_for(SETTLED)


async def table_of(page: Page, name: str) -> list[list[str]]:
    """Return the texts of the rows of a table."""
    found: list[list[str]] = await page.evaluate(
        f"[...document.querySelectorAll('#{name} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return found


async def saved(page: Page, name: str) -> list[list[str]]:
    """Click on the button that saves a table, and return the cells of the file, without its first line."""
    script = f"""(async () => {{
        const blobs = [], create = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
        let name;
        URL.createObjectURL = (blob) => {{ blobs.push(blob); return "#"; }};
        HTMLAnchorElement.prototype.click = function () {{ name = this.download; }};
        document.getElementById('{name}').previousElementSibling.querySelector('button').click();
        URL.createObjectURL = create;
        HTMLAnchorElement.prototype.click = click;
        return [name, btoa(String.fromCharCode(...new Uint8Array(await blobs[0].arrayBuffer())))];
    }})()"""
    saved_as, encoded = await page.evaluate(script)
    assert saved_as == f"sbus-{name}.csv"
    data = base64.b64decode(encoded)
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    return rows[1:]


async def wait_for_file(file: Path) -> None:
    """Wait until the browser has saved *file*; until then it has another name."""
    async with asyncio.timeout(120):
        while not file.exists():
            await asyncio.sleep(0.05)


def test_hosts_are_first_and_select_the_filter(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("document.querySelector('main section').id") == "hosts-section"
        rows = await table_of(page, "hosts")
        assert len(rows) == 100
        assert rows[0][:2] == ["node-144", "for 2 hours"]
        assert (await page.evaluate("document.getElementById('hosts-more').textContent")).startswith("50 more hosts with fewer problems, ")
        assert await page.evaluate("document.getElementById('period').textContent.includes('and 147 more hosts')")
        assert await page.evaluate("document.querySelectorAll('#hosts button.link').length") == 24
        name = await page.evaluate("document.querySelector('#hosts button.link').textContent")
        await page.evaluate("document.querySelector('#hosts button.link').click()")
        await page.wait_for(SETTLED)
        assert await page.evaluate("document.getElementById('filtered').textContent") == f"Only host {name}."
        assert await page.evaluate("document.getElementById('host').selectedOptions[0].text") == name
        assert await page.evaluate("document.querySelector('.tile b').textContent.length") > 0
        assert {row[2] for row in await table_of(page, "units")} == {name}
        await page.evaluate("document.getElementById('clear').click()")
        await page.wait_for(SETTLED)

    wide.visit(look)


def test_tiles_are_compared_and_red_only_if_worse_or_above_the_rate(chromium: Chromium, tmp_path: Path) -> None:
    found: dict[tuple[int, int | None], dict[str, list[str]]] = {}

    for trouble, before in ((1, 1), (9, 1), (1, 9), (9, None)):
        folder = tmp_path / f"{trouble}-{before}"
        folder.mkdir()

        async def look(page: Page, place: tuple[int, int | None] = (trouble, before)) -> None:
            found[place] = await tiles_of(page)
            assert await page.evaluate("[...document.querySelectorAll('.tile')].every((tile) => document.querySelector(tile.hash))")
            note = await page.evaluate("document.getElementById('compared').textContent")
            assert "same 6 hours of the day before: 2026-11-19 12:00 to 2026-11-19 18:00 UTC" in note
            assert "of the week before: 2026-11-13 12:00 to 2026-11-13 18:00 UTC: no data then" in note

        page = written(folder, fleet_hosts(12), before, hours=6, trouble=trouble)
        visit(chromium, page, look, before="window.requestIdleCallback = () => 0", mark="drawn", height=200)
    assert found[1, 1]["messages"] == ["", "day before no change", "week before no data then"]
    assert all(lines[0] == "" for lines in found[1, 1].values() if "above" not in lines[-1])
    assert found[9, 1]["refusals"][0] == "alarm"
    assert "more than the day before" in found[9, 1]["refusals"][-1]
    assert re.fullmatch(r"day before \+[\d.]+( k)? \(\+[\d,.]+\u00a0%\)", found[9, 1]["refusals"][2])
    assert re.match(r"day before −", found[1, 9]["refusals"][2])
    assert found[1, 9]["refusals"][0] == ""
    assert found[9, None]["refusals"][2] == "day before no data then"
    assert found[9, None]["failed calls"][0] == "alarm"
    assert found[9, None]["failed calls"][-1] == "above 1\u00a0% of calls"


def test_only_periods_with_all_hours_are_compared(chromium: Chromium, tmp_path: Path) -> None:
    """The day before has half of the hours; the week before has all, without the last two hosts."""
    require_program("chromium", "chromium")
    hosts = fleet_hosts(12)
    now = fleet_snapshot(hosts, ENTRY, hours=6, trouble=9)
    day, week = earlier_periods(now.manifests)
    earlier = [
        Earlier(day, fleet_snapshot(hosts, ENTRY, hours=3, start=NOON - 24 * HOUR_NS)),
        Earlier(week, fleet_snapshot([*hosts[:10], "gone"], ENTRY, hours=6, start=NOON - 168 * HOUR_NS)),
    ]
    file = tmp_path / "report.html"
    file.write_text(page_of(digest_of(now, lambda _: None, 1, earlier).data))

    async def look(page: Page) -> None:
        note = "document.getElementById('compared').textContent"
        found = await tiles_of(page)
        for name in ("messages", "refusals", "p99 call latency"):
            (line,) = [line for line in found[name] if line.startswith("day before")]
            assert re.fullmatch(r"day before was [\d.]+( k| ms)? in 3 of 6 hours", line), line
        assert found["refusals"][0] == "alarm"
        assert "more than the week before" in found["refusals"][-1]
        assert not [line for lines in found.values() for line in lines if "more than the day before" in line]
        assert found["users"] == [""]
        assert any(line.endswith("of deliveries") for line in found["messages lost"])
        assert "the tables have 3 of 6 hours, and" in await page.evaluate(note)
        await choose(page, "host", "node-010")
        found = await tiles_of(page)
        assert [found[name][-1] for name in ("messages", "calls")] == ["week before no data then"] * 2
        assert "the tables have 3 of 6 hours of the host, and" in await page.evaluate(note)
        assert "UTC: no data then." in await page.evaluate(note)
        await page.evaluate("document.getElementById('clear').click()")
        await page.wait_for(SETTLED)
        # This user loses messages, and publishes too.
        await choose(page, "user", "uid 1007")
        lost = (await tiles_of(page))["messages lost"]
        assert lost[1].startswith("day before was ")
        assert not [line for line in lost if "of deliveries" in line]

    visit(chromium, file, look)


def test_numbers_without_calls_and_of_almost_a_unit(small: OpenPage) -> None:
    async def look(page: Page) -> None:
        latency = "tiles.TILES.find((tile) => tile.name === 'p99')"
        periods = "[null, {p99: null}, {p99: 5000}].map((numbers) => ({name: 'day', there: 6, length: 6, numbers}))"
        changes = f"{periods}.map((period) => [null, 7000].map((now) => tiles.change({latency}, now, period)))"
        assert await page.evaluate(changes) == [["no data then"] * 2, ["no calls then"] * 2, ["was 5 ms", "+2 ms (+40\u00a0%)"]]
        worse = f"[5, 6].map((there) => tiles.alarms({latency}, {{p99: 9000}}, [{{name: 'day', there, length: 6, numbers: {{p99: 1}}}}]))"
        assert await page.evaluate(worse) == [[], ["more than the day before"]]
        numbers = "[99940, 99949, 99950, 99960, 99999, 100000, 1000, 1500, 10000].map(text.compact)"
        assert await page.evaluate(numbers) == ["99.9 k", "99.9 k", "100 k", "100 k", "100 k", "100 k", "1 k", "1.5 k", "10 k"]

    small.visit(look)


def test_a_phone_omits_values_but_no_names(small: OpenPage) -> None:
    async def look(page: Page) -> None:
        await page.resize(390, 800)
        columns = """[["key", "long", () => "0"], ["unit", "", () => "–"], ["command", "long", () => "0 B"],
            ["remote host", "number", () => 0], ["code", "", () => null], tables.number("lost", () => 0),
            tables.number("bytes", () => 0, text.bytes),
            tables.number("max", () => null, text.micros), tables.number("calls", () => 3)]"""
        await page.evaluate(f"tables.show('units', [1], {columns})")
        cells = "[...document.querySelector('#units tbody tr').cells].filter((cell) => getComputedStyle(cell).display !== 'none')"
        shown = await page.evaluate(f"{cells}.map((cell) => [cell.dataset.label, cell.textContent])")
        assert shown == [["key", "0"], ["unit", "–"], ["command", "0 B"], ["remote host", "0"], ["calls", "3"]]
        await page.resize()

    small.visit(look)


def test_flows_are_folded_to_thirty_links(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        links = "document.getElementById('flows').data[0].link.value"
        assert 2 <= await page.evaluate(f"{links}.length") <= 30
        words = await page.evaluate("document.getElementById('flows-note').textContent")
        folded, known = (int(number) for number in re.findall(r"(\d+) of (\d+) links are folded into others", words)[0])
        assert known > 30
        assert 0 < folded < known
        # Nothing is lost: each delivery is in a link on either side of its key.
        deliveries = "JSON.parse(document.getElementById('data').textContent).flows.deliveries.reduce((a, b) => a + b)"
        assert await page.evaluate(f"{links}.reduce((a, b) => a + b)") == 2 * await page.evaluate(deliveries)
        assert "other keys" in await page.evaluate("document.getElementById('flows').data[0].node.label")

    wide.visit(look)


def test_a_single_bar_is_between_whole_minutes(small: OpenPage) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("document.getElementById('traffic').data[0].x.length") == 1
        labels = await page.evaluate("document.getElementById('traffic').layout.xaxis.ticktext")
        assert len(labels) > 1
        assert all(re.fullmatch(r"\d\d:\d\d(<br>\d{4}-\d\d-\d\d)?", label) for label in labels)

    small.visit(look)


def test_percentiles_are_at_most_the_maximum(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        for row in await saved(page, "calls"):
            p50, p90, p99, longest = (int(cell) for cell in row[-4:])
            assert p50 <= p90 <= p99 <= longest

    wide.visit(look)


def test_every_table_can_be_saved_and_no_cell_is_a_formula(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        for name in TABLES:
            rows = await saved(page, name)
            assert len(rows) >= len(await table_of(page, name)) > 0
            assert not [cell for row in rows for cell in row if re.match(r"[\s\x00-\x1f]*[=+\-@]", cell)], name
        names = {row[0] for row in await saved(page, "covers")}
        assert {"'=cmd|' /C calc'!A0", "'+1<script>window.broken=1</script>", "'-a\\u{202e}b\\u{1b}[2J", "'@SUM(1)", HOSTILE[-1]} <= names
        assert await page.evaluate("window.broken") is None
        hard = "tables.csv([['=1;\\n\"x\"', '\\t=2', -3, null]], [0, 1, 2, 3].map((at) => [`h${at}`, '', (row) => row[at]]))"
        assert await page.evaluate(hard) == '\ufeff"h0","h1","h2","h3"\r\n"\'=1;\\u{a}""x""","\'\\u{9}=2",-3,\r\n'

    wide.visit(look)


def test_the_browser_saves_the_file_under_the_policy(wide: OpenPage, tmp_path: Path) -> None:
    """The policy of the page allows no source of data, and a download needs none."""

    async def look(page: Page) -> None:
        await page.ask("Browser.setDownloadBehavior", behavior="allow", browserContextId=page.context, downloadPath=str(tmp_path))
        await page.evaluate("document.getElementById('hosts').previousElementSibling.querySelector('button').click()")
        await wait_for_file(tmp_path / "sbus-hosts.csv")
        page.requests = [url for url in page.requests if not url.startswith("blob:")]

    wide.visit(look)
    assert (tmp_path / "sbus-hosts.csv").read_text("utf-8-sig").startswith('"host","silent","last row"')


def test_hostile_hosts_are_text(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("window.broken") is None
        assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert await page.evaluate("[...document.querySelectorAll('a')].every((link) => /^#[a-z-]+$/.test(link.getAttribute('href')))")
        for unseen in ("\u202e", "\x1b"):
            assert unseen not in await page.evaluate("document.body.innerText")
        shown = {row[0] for row in await table_of(page, "covers")}
        assert {HOSTILE[0], HOSTILE[1], "-a\\u{202e}b\\u{1b}[2J", HOSTILE[4]} <= shown

    wide.visit(look)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_paper_is_light_and_nothing_is_cut_off(chromium: Chromium, fleet: Path, wide: OpenPage, is_dark: bool) -> None:
    state = """({ground: getComputedStyle(document.body).backgroundColor, paper: document.getElementById('traffic').layout.paper_bgcolor,
        ink: getComputedStyle(document.body).color,
        widest: Math.max(...[...document.querySelectorAll('.chart .main-svg')].map((svg) => svg.width.baseVal.value)),
        drawn: document.querySelectorAll('.js-plotly-plot').length,
        cut: [...document.querySelectorAll('.scroll')].filter((box) => getComputedStyle(box).overflowY !== 'visible').length})"""

    async def look(page: Page) -> None:
        before = await page.evaluate(state)
        assert before["paper"] == ("#1b2027" if is_dark else "#ffffff")
        await page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {state}; }})")
        pdf = await page.ask("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        printed = await page.evaluate("window.printed")
        assert (printed["ground"], printed["paper"], printed["ink"]) == ("rgb(255, 255, 255)", "#ffffff", "rgb(27, 31, 36)")
        assert printed["widest"] <= 718
        assert (printed["cut"], printed["drawn"]) == (0, before["drawn"])
        data = base64.b64decode(pdf["data"])
        assert data.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", data)) > 3
        await page.wait_for(f"!document.documentElement.dataset.paper && {SETTLED}")
        assert await page.evaluate(state) == before

    if is_dark:
        visit(chromium, fleet, look, width=1400, is_dark=True)
    else:
        wide.visit(look)


def test_rows_are_blocks_on_a_phone(chromium: Chromium, fleet: Path) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        boxes = "[...document.querySelectorAll('.scroll')]"
        assert await page.evaluate(f"{boxes}.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.id)") == []
        # Who and what of a refusal are in sight, with their labels, and the table says what the blocks are.
        cells = "[...document.querySelector('#security tbody tr').cells].filter((cell) => getComputedStyle(cell).display !== 'none')"
        shown = await page.evaluate(
            f"{cells}.map((cell) => [cell.dataset.label, cell.textContent, cell.getBoundingClientRect().right <= innerWidth])"
        )
        assert [label for label, _, _ in shown[:3]] == ["user", "key or pattern", "count"]
        assert all(is_inside for _, _, is_inside in shown)
        assert await page.evaluate("getComputedStyle(document.querySelector('#security-section .tools .phone')).display") != "none"
        visible = "[...document.querySelectorAll('#hosts tbody tr')].filter((row) => row.getClientRects().length).length"
        assert await page.evaluate(visible) == 12
        await page.evaluate("document.querySelector('#hosts button.phone').click()")
        assert await page.evaluate(visible) == 100

    visit(chromium, fleet, look, width=390, height=800)


def test_a_wide_window_has_tables(wide: OpenPage) -> None:
    async def look(page: Page) -> None:
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await page.evaluate("getComputedStyle(document.querySelector('#hosts thead')).display") == "table-header-group"
        assert await page.evaluate(
            "[...document.querySelectorAll('main .phone')].every((part) => getComputedStyle(part).display === 'none')"
        )

    wide.visit(look)
