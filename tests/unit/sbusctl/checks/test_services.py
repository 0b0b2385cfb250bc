"""The checks of the trigger."""

from __future__ import annotations

import os
import pwd
import re
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sbus_programs.systemd import service_user
from sbus_services.metrics.exposition import MissingLibraryError
from sbusctl.checks import CheckResult, Finding, services
from sbusctl.checks.services import FEEDS, TRIGGER, check_blobs, check_files, check_metrics, check_rights, check_scrape, check_trigger
from tests.support import skips
from tools.stage import ROOT, house_files

RULES = """
[[on]]
keys = ["systemd/unit/", "net/link/", "own/"]
from = ["root"]
name = "watch"
restart = "backup.service"

[[on]]
keys = "rpc/page"
from = ["*"]
start = "page@.service"
when = "no-service"
"""
RUNNING = {"ActiveState": "active", "UnitFileState": "enabled", "LoadState": "loaded"}
ALL = {
    TRIGGER: RUNNING,
    "backup.service": RUNNING,
    "page@x.service": RUNNING,
    "sbus-feed@systemd.service": RUNNING,
    "sbus-feed@netlink.service": RUNNING,
}

Shown = dict[str, Mapping[str, str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The units that systemd knows; a test changes them."""
    units: Shown = dict(ALL)
    monkeypatch.setattr(services, "shown_units", lambda scope, *names: {name: units[name] for name in names if name in units})
    return units


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "trigger.toml"
        file.write_text(text)
        return file

    return write


def test_nothing_is_checked_where_it_is_not_used(shown: Shown, configure: Callable[[str], Path]) -> None:
    shown[TRIGGER] = {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert check_trigger("system", configure("")) == []


@pytest.mark.parametrize("state", ["not-found", "masked"])
def test_an_invalid_file_that_a_removed_package_left_is_no_failure(state: str, shown: Shown, configure: Callable[[str], Path]) -> None:
    file = configure("[[on]]\nkeys = 1\n")
    (finding,) = check_trigger("system", file)
    assert (finding.result, finding.advice) == (CheckResult.FAIL, f"correct {file}; see trigger.toml(5)")
    shown[TRIGGER] = {"LoadState": state}
    (finding,) = check_trigger("system", file)
    assert finding.result is CheckResult.SKIP
    assert "configuration without" in finding.reason


def test_all_is_well(shown: Shown, configure: Callable[[str], Path]) -> None:
    (finding,) = check_trigger("system", configure(RULES))
    assert (finding.result, finding.reason) == (CheckResult.OK, f"{TRIGGER} runs with 2 rules")


def test_a_feed_that_is_not_active(shown: Shown, configure: Callable[[str], Path]) -> None:
    shown["sbus-feed@systemd.service"] = {"ActiveState": "inactive"}
    shown["sbus-feed@netlink.service"] = {"ActiveState": "inactive", "LoadState": "masked"}
    _, *found = check_trigger("user", configure(RULES))
    assert [each.result for each in found] == [CheckResult.WARN] * 2
    assert {each.advice for each in found} == {
        "systemctl --user enable --now sbus-feed@systemd.service",
        "systemctl --user unmask sbus-feed@netlink.service; systemctl --user enable --now sbus-feed@netlink.service",
    }
    assert all('the rule "watch" waits for messages' in each.reason for each in found)


@pytest.mark.parametrize("name", ["backup.service", "page@x.service"])
def test_a_unit_that_does_not_exist(shown: Shown, configure: Callable[[str], Path], name: str) -> None:
    shown[name] = {"LoadState": "not-found", "ActiveState": "inactive"}
    _, finding = check_trigger("system", configure(RULES))
    assert (finding.check, finding.result) == ("trigger unit", CheckResult.WARN)
    assert f"names {name.replace('@x', '@')}, which systemd cannot use: not-found" in finding.reason


def test_a_unit_with_another_name_exists(shown: Shown, configure: Callable[[str], Path]) -> None:
    """systemctl shows an alias under the name of its unit."""
    shown["real.service"] = shown.pop("backup.service")
    assert len(check_trigger("system", configure(RULES))) == 1


@pytest.mark.parametrize(
    ("unit", "result", "words"),
    [
        ({"ActiveState": "failed", "UnitFileState": "enabled"}, CheckResult.FAIL, "is enabled, but failed"),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, CheckResult.WARN, "2 rules, but sbus-trigger.service is not enabled"),
        ({}, CheckResult.WARN, "is not enabled"),
    ],
)
def test_a_service_that_does_not_run(
    shown: Shown, configure: Callable[[str], Path], unit: Mapping[str, str], result: CheckResult, words: str
) -> None:
    shown[TRIGGER] = unit
    finding, *_ = check_trigger("system", configure(RULES))
    assert finding.result is result
    assert words in finding.reason


def test_a_faulty_configuration(shown: Shown, configure: Callable[[str], Path]) -> None:
    (finding,) = check_trigger("system", configure("[[on]]\nkeys = 1\n"))
    assert finding.result is CheckResult.FAIL
    assert "trigger.toml" in finding.advice


def test_without_systemd(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]) -> None:
    monkeypatch.setattr(services, "shown_units", lambda *names: Finding("units", CheckResult.SKIP, "systemd is not the init system"))
    assert check_trigger("system", configure("")) == []
    (finding,) = check_trigger("system", configure(RULES))
    assert (finding.check, finding.result) == ("trigger", CheckResult.SKIP)


def test_the_feeds_are_those_of_the_program() -> None:
    text = (ROOT / "man/sbus-feed.8").read_text()
    assert set(FEEDS.values()) == set(re.findall(r"^\.Nm\n\.Cm (\w+)", text, re.MULTILINE))
    assert all(f"{head}/" in text for head in FEEDS)


EFFECTS = {"presence": "it does not see", "vouch": "it cannot speak"}

ME = pwd.getpwuid(os.geteuid())


def test_a_missing_right_is_named_with_its_effect_and_the_line_to_add(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(f"[rights]\npresence = {{ users = [{ME.pw_uid}] }}\n")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert finding.result is CheckResult.FAIL
    assert finding.reason == f"user {ME.pw_name} does not have the right vouch: it cannot speak"
    assert f'vouch = {{ users = ["{ME.pw_name}"] }}' in finding.advice
    assert str(file) in finding.advice


def test_a_right_can_come_from_a_group(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(f"[rights]\npresence = {{ users = [{ME.pw_uid}] }}\nvouch = {{ groups = [{ME.pw_gid}] }}\n")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert (finding.result, finding.reason) == (CheckResult.OK, f"{ME.pw_name} has: presence vouch")


def test_an_owner_of_the_user_bus_has_presence(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text("")
    assert [finding.reason.split(":")[0] for finding in check_rights("sbus-store", "user", EFFECTS, file)] == [
        f"user {ME.pw_name} does not have the right vouch"
    ]
    assert check_rights("sbus-blob", "user", {"presence": "it does not see"}, file) == []


def test_a_user_that_does_not_exist_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (finding,) = check_rights("sbus-store", "system", EFFECTS, tmp_path / "sbusd.toml", user="no-such-user")
    assert (finding.result, finding.advice) == (CheckResult.WARN, "install the package sbus-store")
    file = tmp_path / "wrong.toml"
    file.write_text("rights = 5\n[")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert finding.result is CheckResult.SKIP


LOADED = {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}


def test_blob_nothing_is_checked_where_it_is_not_used(tmp_path: Path) -> None:
    assert check_blobs({}, str(tmp_path / "sbus.socket"), "user") == []
    assert check_blobs(LOADED | {"UnitFileState": "disabled"}, str(tmp_path / "sbus.socket"), "user") == []


def test_a_missing_socket_is_a_failure(tmp_path: Path) -> None:
    (finding,) = check_blobs(LOADED, str(tmp_path / "sbus.socket"), "user")
    assert finding.result is CheckResult.FAIL
    assert f"{tmp_path}/sbus-blob.socket" in finding.reason
    assert finding.advice == "systemctl --user restart sbus-blob.socket"


def test_a_socket_and_its_unit_belong_together(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "sbus-blob.socket"))
        results = [
            check_blobs(unit, str(tmp_path / "sbus.socket"), "user")[0].result for unit in (LOADED, {}, LOADED | {"ActiveState": "failed"})
        ]
    assert results == [CheckResult.OK, CheckResult.OK, CheckResult.WARN]


METRICS_LOADED = {"LoadState": "loaded", "UnitFileState": "disabled", "ActiveState": "active"}
ENABLED = METRICS_LOADED | {"UnitFileState": "enabled", "ActiveState": "failed"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The rights that were checked."""
    found: list[set[str]] = []

    def check(service: str, scope: str, effects: Mapping[str, str]) -> list[object]:
        assert (service, scope) == ("sbus-metrics", "system")
        found.append(set(effects))
        return []

    monkeypatch.setattr(services, "check_rights", check)
    monkeypatch.setattr(services, "check_scrape", lambda: Finding("metrics scrape", CheckResult.SKIP, ""))
    return found


def test_metrics_nothing_is_checked_where_it_is_not_used(tmp_path: Path) -> None:
    assert check_metrics({}, tmp_path / "metrics.toml") == []
    assert check_metrics(METRICS_LOADED | {"ActiveState": "inactive"}, tmp_path / "metrics.toml") == []


def test_the_rights_that_the_configuration_needs(tmp_path: Path, asked: list[set[str]]) -> None:
    file = tmp_path / "metrics.toml"
    assert [each.result for each in check_metrics(METRICS_LOADED, file)] == [CheckResult.OK, CheckResult.SKIP]
    file.write_text('prefixes = ["net/"]\n')
    assert [each.result for each in check_metrics(ENABLED, file)] == [CheckResult.OK], "no scrape without a socket"
    assert asked == [{"stats"}, {"stats", "tap"}]


def test_metrics_a_faulty_configuration(tmp_path: Path) -> None:
    file = tmp_path / "metrics.toml"
    file.write_text("max_users = -1\n")
    (finding,) = check_metrics(METRICS_LOADED, file)
    assert (finding.result, finding.advice) == (CheckResult.FAIL, f"correct {file}")
    assert "max_users" in finding.reason


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingLibraryError

    monkeypatch.setattr(services, "check_library", missing)
    (finding,) = check_metrics(METRICS_LOADED, tmp_path / "metrics.toml")
    assert finding.result is CheckResult.FAIL
    assert "python3-prometheus-client" in finding.reason


METRICS = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n# TYPE sbus_up gauge\nsbus_up "


@pytest.mark.parametrize(
    ("response", "result", "words"),
    [
        (METRICS + b"1.0\n", CheckResult.OK, "33 bytes"),
        (METRICS + b"0.0\n", CheckResult.FAIL, "no metrics of the bus"),
        (b"HTTP/1.0 403 Forbidden\r\n\r\nsbus_up 1", CheckResult.SKIP, "as root"),
        (b"HTTP/1.0 500 Internal Server Error\r\n\r\n", CheckResult.FAIL, "500 Internal Server Error"),
        (b"garbage", CheckResult.FAIL, "no response of HTTP"),
        (b"", CheckResult.FAIL, "no response of HTTP"),
    ],
)
def test_the_response_to_a_scrape(folder: Path, response: bytes, result: CheckResult, words: str) -> None:
    path = str(folder / "metrics.socket")
    with socket.create_server(path, family=socket.AF_UNIX) as listener:

        def respond() -> None:
            scraper, _ = listener.accept()
            with scraper:
                assert b"GET /metrics " in scraper.recv(4_096)
                scraper.sendall(response)

        server = threading.Thread(target=respond)
        server.start()
        finding = check_scrape(path)
        server.join()
    assert finding.result is result
    assert words in finding.reason


def test_a_scrape_without_a_response_ends(folder: Path) -> None:
    path = str(folder / "metrics.socket")
    with socket.create_server(path, family=socket.AF_UNIX):
        finding = check_scrape(path, 0.05)
    assert (finding.result, finding.reason) == (CheckResult.FAIL, f"{path}: no complete response within 0.05 s")


def test_a_scrape_of_a_socket_that_does_not_exist(folder: Path) -> None:
    finding = check_scrape(str(folder / "no.socket"))
    assert finding.result is CheckResult.FAIL
    assert "No such file" in finding.reason
    assert "systemctl restart sbus-metrics.socket" in finding.advice


ON = {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}
FILES = {
    "blob.toml": "sbus-blob.socket",
    "feed-dbus.toml": "sbus-feed@dbus.service",
    "recorder.toml": "sbus-recorder.service",
    "ship.toml": "sbus-ship.service",
    "live.toml": "sbus-live.service",
}


@pytest.fixture
def service_files_shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, str]]:
    """The units that systemd knows; a test changes them."""
    units: dict[str, Mapping[str, str]] = {}
    monkeypatch.setattr(services, "shown_units", lambda scope, *names: {name: units[name] for name in names if name in units})
    return units


@pytest.mark.parametrize(("name", "unit"), FILES.items())
def test_an_invalid_file_of_a_service_that_is_on_is_a_failure(
    name: str, unit: str, folder: Path, service_files_shown: dict[str, Mapping[str, str]]
) -> None:
    (folder / name).write_text("unknown_key = 1\n")
    assert check_files("system", folder) == []
    service_files_shown[unit] = ON | {"UnitFileState": "disabled", "ActiveState": "inactive"}
    assert check_files("system", folder) == []
    service_files_shown[unit] = ON
    (found,) = check_files("system", folder)
    assert (found.check, found.result, found.advice) == (name, CheckResult.FAIL, f"correct {folder / name}")
    (folder / name).write_text("")
    assert check_files("system", folder) == []


@pytest.mark.parametrize(("name", "unit"), FILES.items())
def test_a_file_that_only_root_can_read_is_a_failure(
    name: str, unit: str, folder: Path, service_files_shown: dict[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    skips.require_root()
    user = service_user.parse_user({"LoadState": "loaded", "User": "daemon"})
    asked: list[str] = []

    def user_of(service: str, _main_file: Path) -> service_user.ServiceUser | None:
        asked.append(service)
        return user

    monkeypatch.setattr(service_user, "user_of", user_of)
    service_files_shown[unit] = ON
    folder.chmod(0o755)
    file = folder / name
    file.write_text("")
    file.chmod(0o600)
    (found,) = check_files("system", folder)
    assert (found.result, found.advice) == (CheckResult.FAIL, f"let the user daemon read {file}")
    assert "Permission denied" in found.reason
    assert asked == [unit.replace(".socket", ".service")]
    file.chmod(0o644)
    assert check_files("system", folder) == []


def test_a_user_is_not_told_that_a_file_of_the_machine_is_wrong(
    folder: Path, service_files_shown: dict[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service_files_shown["sbus-blob.socket"] = ON
    (folder / "blob.toml").write_text("unknown_key = 1\n")
    monkeypatch.setattr(os, "access", lambda path, mode, effective_ids=False: False)
    (found,) = check_files("system", folder)
    assert found.result is CheckResult.SKIP


def test_each_configuration_of_a_service_is_checked() -> None:
    """Each main file that a program reads by default is read by doctor, too."""
    sources = {path: path.read_text("utf-8") for path in house_files(".py")}
    checks = "".join(text for path, text in sources.items() if "sbusctl" in path.parts)
    read = {name for text in sources.values() for name in re.findall(r'default_main_file\("([\w-]+\.toml)"', text)}
    assert len(read) >= 10
    assert sorted(name for name in read if f'"{name}"' not in checks) == []
