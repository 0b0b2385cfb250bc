"""sbus-web(8) documents every option with its default, every frame with its members, every limit and log message."""

from __future__ import annotations

import re
import subprocess

import pytest
import typer.main

from sbusd.systemd.log_records import QUIET_SECONDS
from sbusd.web import main
from sbusd.web.connections import MAX_CONNECTIONS
from sbusd.web.frames import MAX_FRAME_BYTES, REQUESTS
from sbusd.web.log_messages import MESSAGES
from sbusd.web.logins import FAILURE_SECONDS, MAX_FAILURES, MAX_LOGINS
from sbusd.web.loopback import MAX_CONNECTIONS as MAX_HTTP_CONNECTIONS
from sbusd.web.server import HEARTBEAT_SECONDS
from sbusd.web.session import QUEUE_PACKETS
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-web.8"
STATIC = ROOT / "sbusd" / "web" / "static"
UNIT = ROOT / "units" / "user" / "sbus-web.service"


def section(title: str, head: str = "Sh") -> str:
    return re.split(r"\n\.S[hs] ", PAGE.read_text("utf-8").split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    plain = re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).replace("Fl Fl ", "--").replace("Fl ", "-")
    return " ".join(plain.split()).replace(" ,", ",").replace(" .", ".")


def test_every_option_is_documented_with_its_default_and_no_other() -> None:
    options = [each for each in typer.main.get_command(main.app).params if each.param_type_name == "option" and each.name != "help"]
    text = section("OPTIONS")
    documented = dict(re.findall(r"^\.It Fl Fl ([\w-]+)(?: Ar (.*))?$", text, re.MULTILINE))
    assert list(documented) == [each.opts[0].removeprefix("--") for each in options]
    synopsis = section("SYNOPSIS")
    for each in options:
        name = each.opts[0].removeprefix("--")
        assert f"Fl Fl {name}" in synopsis
        part = words(text.split(f".It Fl Fl {name}")[1].split("\n.It ")[0])
        assert documented[name] == ("" if getattr(each, "is_flag", False) else each.metavar)
        if isinstance(each.default, str | int) and not isinstance(each.default, bool):
            assert f"The default is {each.default}." in part, name
    assert f"sessions, 1 to {main.MOST_SESSIONS}." in words(text)
    assert f"of a session, 1 to {main.MOST_PATTERNS}." in words(text)
    assert "1KiB to 64MiB" in text


def test_every_request_is_documented_with_its_members() -> None:
    text = section("Requests", "Ss")
    items = re.split(r"^\.It Cm ", text, flags=re.MULTILINE)[1:]
    assert [item.split("\n")[0] for item in items] == list(REQUESTS)
    for item in items:
        assert all(f".Cm {member}" in item for member in REQUESTS[item.split("\n")[0]]), item


def test_every_notification_that_the_page_handles_is_documented() -> None:
    items = re.findall(r"^\.It Cm (\w+)$", section("Notifications", "Ss"), re.MULTILINE)
    handled = {name for file in ("main.js", "messages.js") for name in re.findall(r'case "(\w+)":', (STATIC / file).read_text())}
    assert set(items) == handled - {"error"} == {"hello", "bus", "message", "gap", "reconnected"}


def test_the_limits_are_documented() -> None:
    text = words(PAGE.read_text("utf-8"))
    assert f"at most {MAX_FRAME_BYTES} bytes" in text
    assert f"and {QUEUE_PACKETS} messages wait for each pattern" in text
    assert f"more than {MAX_CONNECTIONS} connections" in text
    assert f"After {MAX_FAILURES} wrong tokens within {FAILURE_SECONDS:g} s" in text
    assert f"At most {MAX_LOGINS} browsers can be logged in" in text
    assert f"or {MAX_HTTP_CONNECTIONS} connections" in text
    assert f"within {HEARTBEAT_SECONDS / 2:g} s is disconnected; pings are sent every {HEARTBEAT_SECONDS:g} s" in text
    (rows,) = re.findall(r"MOST_ROWS = (\d+)", (STATIC / "messages.js").read_text())
    assert f"The newest {rows} are listed" in text


def test_every_event_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section("LOG MESSAGES"), re.MULTILINE)
    assert {name for item in items for name in item.split(" , ")} == {event.name for event in MESSAGES}
    assert f"logged once in {QUIET_SECONDS:g} s" in words(section("LOG MESSAGES"))


def test_the_unit_writes_its_link_where_the_manual_says() -> None:
    unit = UNIT.read_text()
    assert "--url-file %t/sbus-web/url" in unit
    assert "RuntimeDirectory=sbus-web\nRuntimeDirectoryMode=0700" in unit
    assert "$XDG_RUNTIME_DIR/sbus-web/url" in section("FILES")
    assert "--url-file %t/sbus-web/url" in section("EXAMPLES")


@pytest.mark.parametrize("program", ["mandoc", "man"])
def test_the_page_is_clean(program: str) -> None:
    skips.require_program(program, {"mandoc": "mandoc", "man": "man-db"}[program])
    if program == "mandoc":
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
        # Other pages may be missing on this machine.
        assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line and "makewhatis" not in line] == []
    else:
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(PAGE)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
        )
        assert shown.stderr == ""
        assert "SEE ALSO" in shown.stdout
