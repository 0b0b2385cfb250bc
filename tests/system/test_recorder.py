"""The record as a service: the package sbus-recorder on a booted machine, with a pyarrow where the administrator puts it."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_archive.optional_packages import LOCAL
from sbus_archive.pipeline.main import ARCHIVE, TABLES
from tests.support.catalog import CATALOG, entries
from tests.support.container import Container, boot_root
from tests.support.packages import Packages
from tests.support.skips import require
from tests.support.spark import SHORT_JAVA
from tests.support.wheels import pyarrow_for
from tests.system.conftest import APT_INSTALL, BUS, boot

UNIT = "sbus-recorder.service"
PIPELINE = "sbus-pipeline.service"
MESSAGES = 400
"""How many are published before, between and after each of two restarts."""

SPARK_SECONDS = 600.0
"""When a run of the pipeline that has not ended is a failure: it takes a quarter of a minute on an idle machine."""

OF_THE_RECORDER = {"ProcSubset=", "UMask="}
"""What the recorder may and the bus may not: it asks when a client started, from /proc/stat, and its group may read the record."""

OF_THE_PIPELINE = {
    *(
        "IPAddressDeny=",
        "MemoryDenyWriteExecute=",
        "ProcSubset=",
        "RestrictAddressFamilies=~AF_(INET|INET6)",
        "SystemCallFilter=~@resources",
    ),
    *("SupplementaryGroups=", "UMask="),
}
"""What the pipeline may and the bus may not: a Java machine compiles while it runs, and its parts talk over a loopback of their own; it
is in the recorder's group, and its own may read the tables."""

_ROWS = f"""
import json, pathlib
import pyarrow.parquet as pq
root = pathlib.Path({str(ARCHIVE)!r})
entries = [json.loads(path.read_bytes()) for path in sorted((root / "index").glob("*.json"))]
rows = [row for entry in entries for row in pq.ParquetFile(root / entry["path"]).read(["seq", "kind", "key", "payload", "uid"]).to_pylist()]
rows.sort(key=lambda row: row["seq"])
print(json.dumps([[row["kind"], row["key"], (row["payload"] or b"").decode(), row["uid"]] for row in rows]))
"""
"""Prints all rows of the archive as JSON, without this project's own code."""

_TRAFFIC = f"""
import pathlib
import pyarrow.parquet as pq
files = pathlib.Path({str(TABLES)!r}, "traffic").glob("date=*/hour=*/*.parquet")
print(sum(row["messages"] for file in files for row in pq.ParquetFile(file).read().to_pylist() if row["prefix"] == "test/numbers"))
"""
"""Prints how many messages the table has, without Spark."""


@pytest.fixture(scope="module")
def machine(built: Packages) -> Iterator[Container]:
    """A machine with the bus and the recorder's package; pyarrow, which Debian lacks, is in a folder outside of Python's path."""
    made = boot(built, {pyarrow_for(boot_root()): "/opt/pyarrow", **spark_folders()}, installed=BUS)
    try:
        made.run(f"{APT_INSTALL} /opt/packages/{built.recorder.name}")
        yield made
    finally:
        made.stop()


_REPORT_MODULES = (
    *("pyspark", "py4j", "plotly", "_plotly_utils", "narwhals", "packaging"),
    *("deltalake", "arro3", "deprecated", "wrapt"),
)


def spark_folders() -> dict[Path, str]:
    """Return the folders of this machine's Java, and of the packages for tables and reports, and their paths in the container.

    Empty if this machine lacks one of them.
    """
    java = shutil.which("java")
    specs = [importlib.util.find_spec(name) for name in _REPORT_MODULES]
    if java is None or None in specs:
        return {}
    home = Path(java).resolve().parents[1]
    folders = {Path(place): f"/opt/pyspark/{found.name}" for found in specs if found for place in found.submodule_search_locations or ()}
    # plotly reads its own version.
    folders |= {each: f"/opt/pyspark/{each.name}" for path in [*folders] for each in path.parent.glob("plotly-*.dist-info")}
    # Its own files are links into /etc.
    etc = {path: str(path) for path in Path("/etc").glob("java-*-openjdk")}
    return {**folders, **etc, home: "/opt/java"}


@pytest.fixture(scope="module")
def recording(machine: Container) -> Container:
    """The same, with what README.Debian has an administrator do; the recorder runs."""
    machine.run(f"mkdir --parents {LOCAL} && ln --symbolic --target-directory={LOCAL} /opt/pyarrow/*")
    machine.run("systemctl try-restart sbus.service")
    machine.run(f"systemctl reset-failed {UNIT}; systemctl enable --quiet --now {UNIT}")
    return machine


def publish(machine: Container, first: int) -> None:
    """Publish the next :data:`MESSAGES` as alice, each a number."""
    machine.run(f"seq {first} {first + MESSAGES - 1} | sbusctl pub --lines test/numbers", user="alice")


def rows(machine: Container) -> list[tuple[str, str | None, str, int | None]]:
    """Return kind, key, payload and user of all rows in segments, as they were recorded. The recorder does not run, so that all are."""
    return [tuple(row) for row in json.loads(machine.run(f"PYTHONPATH={LOCAL} python3 -", stdin=_ROWS).stdout)]


def test_nothing_is_recorded_before_the_recorder_is_enabled(machine: Container) -> None:
    for unit in (UNIT, "sbus-pipeline.timer"):
        assert machine.run(f"systemctl is-enabled {unit}", check=False).stdout == "disabled\n"
        assert machine.run(f"systemctl is-active {unit}", check=False).stdout == "inactive\n"


def test_without_pyarrow_it_says_once_how_to_get_it(machine: Container) -> None:
    assert machine.run(f"systemctl start {UNIT}", check=False).status != 0
    shown = machine.output(f"systemctl show --property=ExecMainStatus,NRestarts,ActiveState {UNIT}").split()
    assert sorted(shown) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    advice = "python3 -m pip install --target /usr/local/lib/sbusd 'pyarrow>=17'"
    assert f"pyarrow is not installed. Install it with: {advice}" in machine.journal(f"--unit={UNIT}")
    refused = machine.run("sbus-pipeline --archive /tmp --tables /tmp/tables", check=False)
    assert refused.status == 1
    assert refused.stderr.startswith("sbus-pipeline: ")
    assert len(refused.stderr.splitlines()) == 1
    assert "'deltalake>=1.6.6' 'plotly>=6.0' 'pyarrow>=17' 'pyspark==4.3.*'" in machine.run("sbusctl report", check=False).stderr


def test_it_records_through_restarts_of_the_bus_and_its_own(recording: Container) -> None:
    pid = recording.output(f"systemctl show --property=MainPID --value {UNIT}")
    assert recording.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == [
        "sbus-recorder",
        "CapEff:",
        "0" * 16,
    ]
    publish(recording, 0)
    # Now they are on the disk, however slow the recorder is.
    recording.wait_for("sbusctl call recorder/close")
    # The restarted bus keeps the recorder's connection: it cannot tell.
    recording.run("systemctl restart sbus.service")
    publish(recording, MESSAGES)
    recording.run(f"systemctl kill --signal=KILL {UNIT}")
    recording.wait_for(f"test $(systemctl show --property=NRestarts --value {UNIT}) -eq 1 && systemctl is-active {UNIT}")
    publish(recording, 2 * MESSAGES)
    recording.run(f"systemctl stop {UNIT}")
    alice = int(recording.output("id --user alice"))
    found = rows(recording)
    numbers = [row[2:] for row in found if row[:2] == ("message", "test/numbers")]
    kept = Counter(payload for payload, uid in numbers if uid == alice)
    assert len(numbers) == kept.total()
    # Those of the second round that were in memory when it was killed: a fifth of a second's; nothing of any other is missing.
    sure = {str(number) for number in (*range(MESSAGES), *range(2 * MESSAGES, 3 * MESSAGES))}
    assert sure <= kept.keys() <= {str(number) for number in range(3 * MESSAGES)}
    assert set(kept.values()) == {1}
    assert "restart" in {kind for kind, *_ in found}


def test_packages_of_the_recorder_are_invisible_to_other_programs(recording: Container) -> None:
    """One that a .pth file changed would run its modules as whatever user it is, for whatever purpose."""
    assert LOCAL not in recording.output("python3 -c 'import sys; print(sys.path)'")
    assert recording.run("python3 -c 'import pyarrow'", check=False).status == 1
    recording.run(f"PYTHONPATH={LOCAL} python3 -c 'import pyarrow'")


def test_its_records_explain_themselves(recording: Container) -> None:
    shown = recording.journal(f"--unit={UNIT} --catalog --no-hostname")
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-recorder.catalog"))}
    reported = {line.strip() for line in re.findall(r"^\S+ Subject: (.*)$", shown, re.MULTILINE)} & subjects
    assert len(reported) >= 2, shown
    assert "Documentation: man:sbus-recorder(8)" in shown
    assert "@SBUS" not in shown
    assert "Traceback" not in shown


def test_only_the_pipeline_may_read_the_record(recording: Container) -> None:
    recording.run(f"runuser --user sbus-pipeline -- ls {ARCHIVE}/index")
    assert "Permission denied" in recording.run(f"ls {ARCHIVE}", user="alice", check=False).stderr
    assert recording.run(f"runuser --user sbus-pipeline -- touch {ARCHIVE}/index/mine", check=False).status != 0
    # As its unit has it started, it says in one line what is missing here.
    assert recording.run(f"systemctl start {PIPELINE}", check=False).status != 0
    said = recording.journal(f"--unit={PIPELINE} --output=cat SYSLOG_IDENTIFIER=sbus-pipeline").splitlines()
    assert len(said) == 1
    assert said[0].startswith(
        "sbus-pipeline: deltalake is not installed. Install it with: python3 -m pip install --target /usr/local/lib/sbusd "
    )


def test_the_pipeline_makes_tables_as_its_unit_has_it(recording: Container) -> None:
    require(bool(spark_folders()), "needs Java and PySpark on this machine", could_run=True)
    recording.run(f"ln --symbolic --target-directory={LOCAL} /opt/pyspark/*; ln --symbolic /opt/java/bin/java /usr/bin/java")
    published = sum(row[:2] == ("message", "test/numbers") for row in rows(recording))
    # Of the manager's environment, for the unit stays as it is.
    recording.run(f"systemctl set-environment SBUS_PIPELINE_JAVA_OPTIONS='{SHORT_JAVA}'")
    recording.run(f"systemctl start {PIPELINE}", timeout_seconds=SPARK_SECONDS)
    assert int(recording.run(f"PYTHONPATH={LOCAL} python3 -", stdin=_TRAFFIC).stdout) == published > 0
    run = recording.output(f"systemctl show --property=InvocationID --value {PIPELINE}")
    assert recording.journal(f"--output=cat _SYSTEMD_INVOCATION_ID={run}") == ""


def test_root_gets_the_command_that_updates_the_tables_of_the_service(recording: Container) -> None:
    """What root wrote there, the service could not replace."""
    require(bool(spark_folders()), "needs Java and PySpark on this machine", could_run=True)
    refused = recording.run("cd /root && sbus-pipeline --rebuild", check=False)
    assert refused.status == 1
    command = refused.stderr.strip().partition("Run as this user: ")[2]
    assert command.startswith("cd / && runuser -u sbus-pipeline -- sbus-pipeline --archive /"), refused
    recording.run(f"cd /root && SBUS_PIPELINE_JAVA_OPTIONS='{SHORT_JAVA}' sh -c '{command}'", timeout_seconds=SPARK_SECONDS)
    assert recording.output(f"find {TABLES} -not -user sbus-pipeline") == ""


def test_one_command_makes_a_report_of_the_last_minutes(recording: Container) -> None:
    """Nothing is on the disk but the write-ahead log; each error on the way names the next command."""
    require(bool(spark_folders()), "needs Java, PySpark and plotly on this machine", could_run=True)
    report = "cd /root && sbusctl report --now -o now.html"
    assert f"Start it with: systemctl enable --now {UNIT}" in recording.run(report, timeout_seconds=SPARK_SECONDS).stderr
    recording.run(f"systemctl start {UNIT}")
    recording.wait_for("sbusctl members rpc/recorder/close | grep sbus-recorder")
    recording.run("seq 5 | sbusctl pub --lines last/minutes", user="alice")
    done = recording.run(report, timeout_seconds=SPARK_SECONDS)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "written to now.html")
    assert "last/minutes" in recording.output("cat /root/now.html")
    # The rules of the package keep other users away from the call, and the directories from the tables.
    refused = recording.run("sbusctl call recorder/close", user="alice", check=False)
    assert "only the recorder serves its calls, and only root may call them" in refused.stderr
    assert "Run: sudo sbusctl report --now" in recording.run("sbusctl report --now", user="alice", check=False).stderr
    assert "permission denied" in recording.run("sbusctl report", user="alice", check=False).stderr


@pytest.mark.parametrize(("unit", "may"), [(UNIT, OF_THE_RECORDER), (PIPELINE, OF_THE_PIPELINE)])
def test_the_service_is_hardened_like_the_bus_except_for_its_needs(machine: Container, unit: str, may: set[str]) -> None:
    analyse = "systemd-analyze security --offline=true --no-pager --json=short /usr/lib/systemd/system/"

    def exposed(unit: str) -> set[str]:
        found = json.loads(machine.output(f"{analyse}{unit}"))
        return {each["name"] for each in found if each["set"] is False and float(each["exposure"] or 0) > 0}

    assert exposed(unit) - exposed("sbus.service") == may
    machine.run(f"systemd-analyze verify --man=no --recursive-errors=no {unit} sbus-pipeline.timer")


def test_purge_leaves_only_packages_of_the_administrator(recording: Container) -> None:
    recording.run(f"systemctl start {UNIT}")
    recording.run("apt-get purge --yes --quiet=2 sbus-recorder && systemctl daemon-reload")
    assert recording.run("pgrep --full sbus-recorder$", check=False).stdout == ""
    # The users stay, locked, so that their numbers and files cannot pass to other users.
    users = ("sbus-recorder", "sbus-pipeline", "sbus-live", "sbus-ship")
    shadow = recording.output(f"getent shadow {' '.join(users)}").splitlines()
    assert [line.split(":")[1][0] for line in shadow] == ["!"] * len(users)
    kept = "-path /proc -o -path /sys -o -path /opt -o -path /run -o -path /var/lib/dpkg -o -path /var/log"
    kept += " -o -path '/tmp/hsperfdata_*'"  # Java's, of the pipeline that a test has run outside of its unit
    names = " -o ".join(f"-name '*{name}*'" for name in (*users, "50-recorder", "50-live"))
    assert recording.output(f"find / \\( {kept} \\) -prune -o \\( {names} \\) -print") == ""
    recording.run(f"test -d {LOCAL}/pyarrow")
    assert recording.output("systemctl is-active sbus.socket") == "active"
