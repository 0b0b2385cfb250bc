"""sbus-metrics(8) documents every option, key, metric and log message, with the defaults and texts of the code."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields

import typer.main

from sbusd.broker.totals import MAX_USERS
from sbusd.config.documents import settings_of
from sbusd.config.metrics import MAX_PREFIXES, MetricsSettings
from sbusd.metrics import collector, definitions, listener, main, server
from sbusd.metrics.log_messages import MESSAGES
from sbusd.systemd.log_records import QUIET_SECONDS
from tools.stage import ROOT

PAGE = (ROOT / "man" / "sbus-metrics.8").read_text("utf-8")
SAMPLE = ROOT / "etc" / "metrics.toml"
SOCKET = (ROOT / "units" / "system" / "sbus-metrics.socket").read_text()


def section(title: str, head: str = "Sh") -> str:
    """Return one section of the page."""
    return re.split(r"\n\.S[hs] ", PAGE.split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def parsed(text: str) -> MetricsSettings:
    """Return the settings in *text*."""
    return settings_of([(SAMPLE, tomllib.loads(text))], MetricsSettings)


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section("OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (-?\w[\w-]*)", item)) for item in items}
    assert documented == {each - {"--help"} for each in offered} - {frozenset()}


def test_every_key_is_documented_with_its_default() -> None:
    items = re.findall(r"^\.It Cm (\w+) No = (.*)$", section("CONFIGURATION"), re.MULTILINE)
    assert [name for name, _ in items] == [field.name for field in fields(MetricsSettings)]
    shown = {name: re.sub(r" Ns |(?<=\[) ", "", re.sub(r"Qq ?(\w*)", r'"\1"', value)) for name, value in items}
    assert parsed("".join(f"{name} = {value}\n" for name, value in shown.items())) == MetricsSettings()
    text = words(section("CONFIGURATION"))
    assert f"at most {MAX_PREFIXES}" in text
    assert "0 to 500" in text
    assert "1 s to 1 d" in text


def test_the_sample_shows_every_key_with_its_default() -> None:
    text = SAMPLE.read_text("utf-8")
    shown = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert parsed(shown) == parsed(text) == MetricsSettings()
    assert list(tomllib.loads(shown)) == [field.name for field in fields(MetricsSettings)]
    example = parsed("\n".join(re.findall(r"^#     (.*)$", text, re.MULTILINE)))
    assert example == MetricsSettings(users=("prometheus", "telegraf"), prefixes=("net/", "store/"))


def test_every_metric_is_in_the_table_with_its_type_labels_and_help() -> None:
    documented = []
    for part in re.split(
        r"^\.It Li ", section("METRICS") + "".join(section(f"Metrics of {each}", "Ss") for each in PARTS), flags=re.MULTILINE
    ):
        head, _, rest = part.partition("\n")
        if head.startswith("sbus_"):
            name, _, labels = head.partition(" Ns Brq ")
            documented.append((name, tuple(labels.split(" , ")) if labels else (), words(rest.split("\n.El")[0])))
    defined = [(each.name, each.labels, f"{each.kind.value.capitalize()}. {each.help}") for each in definitions.METRICS]
    assert documented == defined


PARTS = ("the bus", "users", "prefixes")


def test_numbers() -> None:
    text = words(PAGE)
    assert f"within {collector.BUS_SECONDS:g} s" in text
    assert all(f".Ql {reason}" in PAGE for reason in collector.REASONS)
    assert all(f".Ql {result}" in PAGE for result in definitions.LOG_RESULTS)
    assert f"The bus itself remembers {MAX_USERS} users" in text
    assert f"together have at most {server.MAX_OTHERS} connections" in text
    assert f"within {server.REQUEST_SECONDS:g} s and have at most {server.MAX_REQUEST_BYTES >> 10} KiB" in text
    assert f"the limit of descriptors is below {main.LEAST_DESCRIPTORS}" in text
    assert f"While {listener.MAX_CLOSES} connections wait to be closed" in text
    assert "no request for 5 minutes" in text
    assert MetricsSettings().idle_timeout == 300


def test_the_addresses_are_those_of_the_unit() -> None:
    places = re.findall(r"^ListenStream=(.*)$", SOCKET, re.MULTILINE)
    assert places == ["127.0.0.1:19722", "/run/sbus-metrics.socket"]
    for text in (PAGE, (ROOT / "packaging/debian/sbus-metrics.README.Debian").read_text()):
        assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) == {"19722"}
    assert f".It Pa {places[1]}\n" in section("FILES")


def test_every_log_message_is_documented() -> None:
    text = section("LOG MESSAGES")
    named = [name for names in re.findall(r"^\.It Cm (.*)$", text, re.MULTILINE) for name in names.split(" , ")]
    assert named == [message.name for message in MESSAGES]
    assert f"once in {QUIET_SECONDS:g} s" in words(text)


def test_the_page_has_the_usual_sections() -> None:
    titles = re.findall(r"^\.Sh (.*)$", PAGE, re.MULTILINE)
    assert titles[:4] == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"]
    assert titles[-3:] == ["EXIT STATUS", "EXAMPLES", "SEE ALSO"]
    assert all(len(line) <= 80 for line in PAGE.splitlines())
