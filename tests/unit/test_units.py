"""The units are what systemd understands, and name what this project installs."""

from __future__ import annotations

import configparser
import itertools
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from sbus_archive.pipeline.session import DIRECT_MEMORY, DRIVER_MEMORY
from sbus_programs.config.relay import REDIS
from sbus_programs.config.ship import ShipSettings
from sbus_services.feeds import main as feeds
from sbus_services.feeds.dbus import connection
from sbus_services.feeds.dbus import logind as logind_manager
from sbus_services.feeds.dbus import systemd as systemd_manager
from tests.support import skips
from tests.support.manual import examples, section, source
from tools.stage import ROOT, house_files

UNITS = sorted(path for path in (ROOT / "units").glob("*/*.*") if path.suffix in {".service", ".socket", ".timer"})
IDS = [f"{unit.parent.name}/{unit.name}" for unit in UNITS]


def read(unit: Path) -> configparser.RawConfigParser:
    """Return the sections of a unit; a key that is repeated has its last value, which is enough here."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(unit.read_text())
    return parser


NEWER = {"RestartSteps": 254, "RestartMaxDelaySec": 254}
"""Keys that an older systemd than this warns of and leaves out, which the units can live with."""


def version() -> int:
    """Return which systemd this is."""
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1])


def known(text: str) -> str:
    """Return a unit's text without the keys that only a newer systemd than this knows."""
    unknown = [key for key, since in NEWER.items() if since > version()]
    return "".join(line for line in text.splitlines(keepends=True) if line.partition("=")[0] not in unknown)


def verify(folder: Path, *units: Path, manager: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze verify over *units*, whose programs are not installed: /bin/true replaces them."""
    made = []
    for unit in units:
        # An instance of a template, so that its specifiers are expanded.
        copy = folder / unit.name.replace("@.", "@netlink.")
        copy.write_text(re.sub(r"^(Exec(?:Start|Reload))=/usr/bin/\S+", r"\1=/bin/true", known(unit.read_text()), flags=re.MULTILINE))
        made.append(str(copy))
    command = ["systemd-analyze", f"--{manager}", "verify", "--man=no", "--recursive-errors=no", *made]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "SYSTEMD_LOG_LEVEL": "info"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=60)


def test_there_are_units() -> None:
    assert {"system/sbus.socket", "system/sbus.service", "system/sbus@.socket", "system/sbus@.service"} < set(IDS)
    assert {"user/sbus.socket", "user/sbus.service", "system/sbus-feed@.service"} < set(IDS)


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["system", "user"])
def test_systemd_finds_nothing_wrong(manager: str, tmp_path: Path) -> None:
    skips.require_program("systemd-analyze", "systemd")
    units = [unit for unit in UNITS if unit.parent.name == manager]
    result = verify(tmp_path, *units, manager=manager)
    said = [line for line in result.stderr.splitlines() if str(tmp_path) in line or "netlink." in line or "sbus" in line]
    assert (result.returncode, said) == (0, []), result.stderr


@pytest.mark.slow
def test_systemd_would_find_a_wrong_key(tmp_path: Path) -> None:
    skips.require_program("systemd-analyze", "systemd")
    wrong = tmp_path / "wrong" / "sbus.service"
    wrong.parent.mkdir()
    wrong.write_text((ROOT / "units/system/sbus.service").read_text().replace("UMask=", "UMasc="))
    result = verify(tmp_path, wrong, manager="system")
    assert result.returncode != 0
    assert "UMasc" in result.stderr


@pytest.mark.parametrize("unit", UNITS, ids=IDS)
def test_documentation_names_our_pages(unit: Path) -> None:
    pages = read(unit)["Unit"]["Documentation"].split()
    assert pages
    programs = (
        r"sbus|sbusd|sbus-protocol|sbus-feed|sbus-recorder|sbus-pipeline|sbus-live|sbus-relay|sbus-link|sbus-blob|sbus-store"
        r"|sbus-ship|sbus-record"
    )
    names = rf"{programs}|sbus-trigger|sbus-metrics|sbus-web|(blob|feed-dbus|sbusd|link|store|trigger)\.toml"
    assert all(re.fullmatch(rf"man:({names})\([578]\)", page) for page in pages)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_services_start_a_program_of_this_project(unit: Path) -> None:
    if unit.name.startswith("redis-server@"):
        assert read(unit)["Service"]["ExecStart"].startswith("/usr/bin/redis-server /etc/sbus/redis.conf ")
        return
    scripts = re.findall(r'^(\S+) = "sbus\w*\.', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    program = Path(read(unit)["Service"]["ExecStart"].split()[0])
    assert program.parent == Path("/usr/bin")
    assert program.name in scripts


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".socket"], ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_sockets_have_their_type_and_are_open_to_the_right_users(unit: Path) -> None:
    section = read(unit)["Socket"]
    is_stream = unit.stem.startswith(("sbus-stream", "sbus-metrics"))
    where = section["ListenStream" if is_stream else "ListenSequentialPacket"]
    assert section["SocketMode"] == ("0666" if unit.parent.name == "system" else "0600")
    assert where.startswith("/run/" if unit.parent.name == "system" else "%t/")
    assert (unit.parent / section.get("Service", f"{unit.stem}.service")).exists()
    presets = unit.parents[1] / f"{unit.parent.name}-preset"
    assert not is_stream or f"disable {unit.name}" in "".join(path.read_text() for path in presets.iterdir())


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_no_service_is_restarted_after_a_configuration_error_for_ever(unit: Path) -> None:
    section = read(unit)
    service = section["Service"]
    program = Path(service["ExecStart"].split()[0]).name
    if program == "redis-server":
        return  # it has one status for all errors
    if program == "sbusd":
        # Its restarts keep the connections until it is repaired, or has failed too often. systemd limits those of user units by default.
        assert section["Unit"].get("StartLimitIntervalSec", "") != "0"
        return
    assert "Restart" not in service or service.get("RestartPreventExitStatus") == "2 78"
    manual = (ROOT / "man" / f"{program}.8").read_text().partition(".Sh EXIT STATUS")[2].partition(".Sh ")[0]
    assert {"0", "1", "2", "78"} <= set(re.findall(r"\b\d+\b", manual))


@pytest.mark.parametrize("name", ["wrong", "hostname", "netlink.service"])
def test_a_feed_that_does_not_exist_is_a_configuration_error(name: str) -> None:
    result = CliRunner().invoke(feeds.app, [name, "--system"], prog_name="sbus-feed")
    first = result.stderr.splitlines()[0]
    assert (result.exit_code, first) == (
        78,
        f"sbus-feed: no such feed '{name}'; the feeds are netlink, journal, udev, systemd, logind and dbus",
    )


def hardening(unit: Path) -> set[str]:
    """Return the lines that say what a service may not do."""
    return set(
        re.findall(
            r"^(?:\w*(?:Protect|Private|Restrict(?!Steps|MaxDelay)|SystemCall|Capabilit|Privileges|Lock|Deny)\w*)=.*$",
            unit.read_text(),
            re.M,
        )
    )


@pytest.mark.parametrize("manager", ["system", "user"])
def test_a_bus_with_a_name_is_as_hardened_as_the_one_without(manager: str) -> None:
    plain, named = (hardening(ROOT / "units" / manager / name) for name in ("sbus.service", "sbus@.service"))
    assert len(plain) > 8
    assert plain == named


def test_no_service_hides_its_peer_credentials() -> None:
    """PrivateUsers= turns the uid of another user into 65534, and for a user's service most Private and Protect settings imply it."""
    for unit in UNITS:
        lines = hardening(unit)
        assert not {line for line in lines if line.startswith(("PrivateUsers=", "PrivatePIDs=", "DynamicUser="))}
        if unit.parent.name == "user":
            assert not {line for line in lines if line.startswith(("Private", "Protect"))}


def test_services_run_as_users_that_sysusers_makes() -> None:
    made = {user for path in (ROOT / "units/sysusers.d").iterdir() for user in re.findall(r"^u (\S+) ", path.read_text(), re.MULTILINE)}
    used = {read(unit)["Service"]["User"] for unit in UNITS if unit.parent.name == "system" and unit.suffix == ".service"}
    # The trigger is root: a user that may manage units has the same power.
    assert used - {"root"} == made >= {"sbus", "sbus-feed", "sbus-recorder", "sbus-pipeline", "sbus-ship"}


def test_the_dbus_policy_names_the_user_of_the_feeds_and_their_services() -> None:
    """D-Bus ignores the policy of a user that does not exist."""
    (policy,) = ElementTree.parse(ROOT / "units/dbus-1/system.d/sbus-feed.conf").getroot()
    users = {name: read(ROOT / f"units/system/sbus-feed@{name}.service")["Service"]["User"] for name in ("systemd", "logind", "dbus")}
    assert policy.attrib == {"user": users["systemd"]} == {"user": users["logind"]}
    assert users["dbus"] != users["systemd"]
    assert {each.get("receive_type") for each in policy if each.tag == "deny"} == {"signal", "method_call"}
    assert {each.get("receive_sender") for each in policy if each.tag == "allow"} == {
        connection.DRIVER,
        systemd_manager.NAME,
        logind_manager.NAME,
    }


@pytest.mark.parametrize("manager", ["system", "user"])
def test_presets_decide_about_each_unit_that_can_be_enabled(manager: str) -> None:
    preset = "".join(path.read_text() for path in sorted((ROOT / f"units/{manager}-preset").iterdir()))
    decided = re.findall(r"^(?:enable|disable) (\S+)$", preset, re.MULTILINE)
    installable = {unit.name for unit in UNITS if unit.parent.name == manager and "Install" in read(unit)}
    assert set(decided) == installable
    assert re.findall(r"^enable (\S+)$", preset, re.MULTILINE) == (["sbus.socket"] if manager == "system" else [])


def test_the_pipeline_can_read_only_files_of_the_recorder() -> None:
    service = read(ROOT / "units/system/sbus-pipeline.service")["Service"]
    recorder = read(ROOT / "units/system/sbus-recorder.service")["Service"]
    assert service["SupplementaryGroups"] == recorder["Group"]
    assert service["StateDirectory"] not in recorder["StateDirectory"].split()
    # The rest is for Java itself, and the processes that match keys.
    taken = int(DRIVER_MEMORY.removesuffix("g")) * 1024 + int(DIRECT_MEMORY.removesuffix("m"))
    assert int(service["MemoryMax"].removesuffix("G")) * 1024 - taken >= 1024
    timer = read(ROOT / "units/system/sbus-pipeline.timer")["Timer"]
    assert timer["OnCalendar"] == "*:0/15"  # as the manual says: every quarter of an hour


def test_the_shipper_reads_the_record_and_the_recorder_its_list() -> None:
    service = read(ROOT / "units/system/sbus-ship.service")["Service"]
    recorder = read(ROOT / "units/system/sbus-recorder.service")["Service"]
    assert (service["SupplementaryGroups"], service["StateDirectoryMode"]) == (recorder["Group"], "0750")
    assert ShipSettings().state == f"/var/lib/{service['StateDirectory']}"
    assert f"m {recorder['User']} {service['Group']}" in (ROOT / "units/sysusers.d/sbus-ship.conf").read_text()
    # Secrets are not on the command line.
    assert service["ExecStart"] == "/usr/bin/sbus-ship"
    apart = {"IPAddressDeny=any", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX", "ProtectProc=default"}
    assert hardening(ROOT / "units/system/sbus-recorder.service") - hardening(ROOT / "units/system/sbus-ship.service") <= apart


def test_the_manual_of_the_shipper_agrees_with_its_unit() -> None:
    unit = (ROOT / "units/system/sbus-ship.service").read_text()
    (claim,) = [each for each in examples("sbus-ship.8") if each[0].startswith("# systemd-run ")]
    command = shlex.split("\n".join(claim[: next(number for number, line in enumerate(claim) if not line.endswith("\\")) + 1])[2:])
    assert command[-2:] == ["/usr/bin/sbus-ship", "--claim"]
    properties = {following for place, following in itertools.pairwise(command) if place == "-p"}
    assert len(properties) == 6
    assert properties <= set(unit.splitlines())
    drop_ins = [each for each in examples("sbus-ship.8") if re.fullmatch(r"\[[A-Z]\w+\]", each[0])]
    assert len(drop_ins) == 3
    keys = {line.partition("=")[0] for lines in drop_ins for line in lines if not line.startswith("[")}
    assert {key for key in keys if f"\n{key}=" not in unit} == {"RequiresMountsFor", "ReadWritePaths"}


def test_the_manual_names_the_addresses_of_the_metrics() -> None:
    socket = (ROOT / "units/system/sbus-metrics.socket").read_text()
    places = re.findall(r"^ListenStream=(.*)$", socket, re.MULTILINE)
    assert places == ["127.0.0.1:19722", "/run/sbus-metrics.socket"]
    for text in (source("sbus-metrics.8"), (ROOT / "packaging/debian/sbus-metrics.README.Debian").read_text()):
        assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) == {"19722"}
    assert f".It Pa {places[1]}\n" in section("sbus-metrics.8", "FILES")


def test_the_unit_of_the_gateway_writes_its_link_where_the_manual_says() -> None:
    unit = (ROOT / "units/user/sbus-web.service").read_text()
    assert "--url-file %t/sbus-web/url" in unit
    assert "RuntimeDirectory=sbus-web\nRuntimeDirectoryMode=0700" in unit
    assert "$XDG_RUNTIME_DIR/sbus-web/url" in section("sbus-web.8", "FILES")
    assert "--url-file %t/sbus-web/url" in section("sbus-web.8", "EXAMPLES")


def test_a_program_that_compares_boots_can_read_the_identity_of_this_one() -> None:
    """Without /proc/sys each restart is a boot for it, and hours after the real one the date has jumped."""
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    checked = 0
    for program, where in programs.items():
        folder = ROOT / "/".join(where.split(":")[0].split(".")[:2])
        unit = ROOT / f"units/system/{program}.service"
        if any(re.search(r"wall_clock|boot_id|of_this_boot", path.read_text()) for path in folder.rglob("*.py")) and unit.exists():
            assert read(unit)["Service"]["ProcSubset"] == "all", program
            checked += 1
    assert checked >= 5


def test_the_relays_redis_is_private_and_durable() -> None:
    redis = read(ROOT / "units/system/redis-server@sbus-relay.service")["Service"]
    relay = read(ROOT / "units/system/sbus-relay.service")
    assert (redis["User"], redis["UMask"], redis["RuntimeDirectoryMode"], redis["StateDirectoryMode"]) == (
        relay["Service"]["User"],
        *("0077", "0700", "0700"),
    )
    for key in ("Wants", "After"):
        assert "redis-server@sbus-relay.service" in relay["Unit"][key].split()
    lines = [line.split(maxsplit=1) for line in (ROOT / "etc/redis.conf").read_text().splitlines() if line and not line.startswith("#")]
    settings = dict(lines)
    assert (settings["port"], settings["unixsocket"], settings["unixsocketperm"]) == ("0", REDIS, "700")
    assert (settings["appendonly"], settings["appendfsync"], settings["maxmemory-policy"]) == ("yes", "always", "noeviction")
    assert Path(settings["dir"]) == Path("/var/lib") / redis["StateDirectory"]
    assert Path(REDIS).parent == Path("/run") / redis["RuntimeDirectory"]


def test_a_users_bus_has_the_users_own_configuration() -> None:
    assert "--user" in read(ROOT / "units/user/sbus.service")["Service"]["ExecStart"].split()


def test_client_looks_where_the_sockets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbus import bus_address

    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    system = read(ROOT / "units/system/sbus.socket")["Socket"]["ListenSequentialPacket"]
    user = read(ROOT / "units/user/sbus.socket")["Socket"]["ListenSequentialPacket"]
    assert bus_address(scope="system") == system
    assert bus_address(scope="user") == user.replace("%t", "/run/user/1000")


def test_rules_of_a_package_name_only_users_that_are_there_with_it() -> None:
    """A rule that names another user is a fault where the other package is not installed, and denies its keys to everybody."""
    installs = {file.stem: file.read_text().split() for file in (ROOT / "packaging/debian").glob("*.install")}
    of_bus = _declared_users(installs["sbusd"])
    checked = 0
    for words in installs.values():
        for word in words:
            if word.startswith("etc/sbusd.toml.d/"):
                named = set(re.findall(r'"(sbus(?:-[a-z]+)?)"', re.sub(r"^#.*$", "", (ROOT / word).read_text(), flags=re.MULTILINE)))
                assert named <= of_bus | _declared_users(words), word
                checked += len(named)
    assert checked >= 6


def _declared_users(words: list[str]) -> set[str]:
    """Return the users that the files of sysusers.d(5) among *words* declare."""
    texts = ((ROOT / word).read_text() for word in words if word.startswith("units/sysusers.d/"))
    return {line.split()[1] for text in texts for line in text.splitlines() if line.startswith(("u ", "u! "))}


SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_a_service_names_how_long_it_may_start_and_stop(unit: Path) -> None:
    """The defaults are those of the machine, and for Type=oneshot infinite: systemctl would wait without a limit."""
    service = read(unit)["Service"]
    for key in ("TimeoutStartSec", "TimeoutStopSec"):
        assert re.fullmatch(r"\d+(?:s|min|h)", service[key]), key


@pytest.mark.parametrize(
    "unit", [unit for unit in SERVICES if "ExecReload=" in unit.read_text()], ids=lambda u: f"{u.parent.name}/{u.name}"
)
def test_a_reload_checks_the_configuration_and_returns_when_it_holds(unit: Path) -> None:
    """Without RELOADING=1 before the signal, systemd may take the reload for done before the service has seen the signal."""
    check, reloading, signal = re.findall(r"^ExecReload=(.*)$", unit.read_text(), re.MULTILINE)
    assert re.match(r"/usr/bin/sbus\S+ --check", check)
    assert reloading == "-/usr/bin/systemd-notify RELOADING=1"
    assert re.fullmatch(r"/bin/kill -(?:USR2|HUP) \$MAINPID", signal)
    assert read(unit)["Service"]["NotifyAccess"] == "exec"


def test_what_all_programs_need_is_protected_from_the_oom_killer() -> None:
    for folder, score in (("system", "-900"), ("user", "100")):
        for name in ("sbus.service", "sbus@.service"):
            service = read(ROOT / "units" / folder / name)["Service"]
            # The check of a reload is a process of the same unit, and may be killed without an end of the bus.
            assert (service["OOMScoreAdjust"], service["OOMPolicy"]) == (score, "continue")
    for unit in SERVICES:
        service = read(unit)["Service"]
        if service.get("OOMScoreAdjust", "0") == "-500":
            assert "MemoryMax" in service, f"{unit.name} may take all memory, and is protected"


def test_each_hint_names_a_unit_that_exists_and_a_command_that_helps() -> None:
    """``start`` does nothing for an active socket unit that has lost its path, and ``reload`` fails for a service that does not run."""
    named = 0
    shipped = {unit.name for unit in UNITS} | {"sbusd.service", "redis-server@sbus-relay.service"}
    sources = [
        *house_files(".py"),
        *sorted((ROOT / "man").iterdir()),
        *sorted((ROOT / "packaging/debian").glob("*.README*")),
    ]
    pattern = re.compile(r"systemctl(?: --user| --global)? ([a-z-]+)(?: --now)? ((?:sbusd?|redis-server)[\w@.-]*)")
    for path in sources:
        for verb, word in pattern.findall(path.read_text()):
            name = word.rstrip(".")
            name = name if "." in name else f"{name}.service"
            assert re.sub(r"@.*\.", "@.", name) in {re.sub(r"@.*\.", "@.", each) for each in shipped}, f"{path}: {word}"
            assert verb in ("enable", "restart", "start", "status", "try-reload-or-restart", "edit", "reset-failed", "stop", "mask"), (
                f"{path}: {verb}"
            )
            assert verb != "start" or not name.endswith(".socket") or path.suffix != ".py", f"{path}: restart {name} instead"
            named += 1
    assert named > 40
