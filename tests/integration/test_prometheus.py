"""Prometheus itself scrapes sbus-metrics: what it has stored is what two users have sent, and its alerts fire."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus.protocol import controls
from tests.support import skips
from tests.support.daemons import Daemon, StartDaemon
from tests.support.free_ports import free_port
from tests.support.metrics_endpoint import Endpoint
from tests.support.relays import wait_for
from tests.support.users import FIRST, SECOND
from tools.stage import ROOT

pytestmark = pytest.mark.usefixtures("needs_root")

CONFIGURATION = """
global:
  scrape_interval: 500ms
  evaluation_interval: 500ms
rule_files: [{rules}]
scrape_configs:
  - job_name: sbus
    static_configs:
      - targets: ['{target}']
"""


class Prometheus:
    """A Prometheus that scrapes *target*, as its own user if there is one; a context."""

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        self.home = folder / "prometheus"
        self.home.mkdir()
        shutil.copy(rules, self.home / "sbus.rules.yml")
        (self.home / "prometheus.yml").write_text(CONFIGURATION.format(target=target, rules=self.home / "sbus.rules.yml"))
        self.user = FIRST
        os.chown(self.home, self.user.uid, self.user.gid)
        self._port = free_port()
        self._log = folder / "prometheus.log"

    def __enter__(self) -> Prometheus:
        command = ["prometheus", f"--config.file={self.home}/prometheus.yml", f"--storage.tsdb.path={self.home}/data"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn"],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user.uid,
                group=self.user.gid,
                extra_groups=(),
            )
        wait_for(self._is_ready, "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, text: str) -> dict[tuple[str, ...], float]:
        """Return the result of a query: the values of the labels, in the order of their names and without job and instance."""
        found = self._get(f"/api/v1/query?query={urllib.parse.quote(text)}")
        result = {}
        for each in found["data"]["result"]:
            labels = [value for name, value in sorted(each["metric"].items()) if name not in ("__name__", "instance", "job")]
            result[tuple(labels)] = float(each["value"][1])
        return result

    def alerts(self) -> set[str]:
        """Return the names of alerts that fire or are pending."""
        return {each["labels"]["alertname"] for each in self._get("/api/v1/alerts")["data"]["alerts"]}

    def _is_ready(self) -> bool:
        """Return whether it serves."""
        assert self._process.poll() is None, self._log.read_text()
        try:
            return bool(self._get("/api/v1/status/buildinfo")["status"] == "success")
        except (OSError, ValueError):
            return False

    def _get(self, path: str) -> Any:
        """Return a JSON document."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@pytest.fixture
def scraped(daemon: StartDaemon, folder: Path) -> Iterator[tuple[Daemon, Prometheus]]:
    """A bus with small quotas, and a Prometheus that scrapes it."""
    skips.require_program("prometheus", "prometheus")
    bus = daemon(config="[quotas]\nqueued_packets = 50\nsubscriptions = 2\n")
    with (
        Endpoint(folder, bus.path, f'users = [{FIRST.uid}]\nprefixes = ["a/"]\n') as endpoint,
        Prometheus(folder, endpoint.address, ROOT / "etc" / "prometheus" / "sbus.rules.yml") as prometheus,
    ):
        wait_for(lambda: prometheus.query('up{job="sbus"}') == {(): 1}, "the first scrape")
        wait_for(lambda: prometheus.query("sbus_prefix_up") == {("a/",): 1}, "the tap")
        yield bus, prometheus


def test_stored_values_are_what_was_sent(scraped: tuple[Daemon, Prometheus]) -> None:
    bus, prometheus = scraped
    reader, writer = bus.client(SECOND), bus.client(FIRST)
    reader.subscribe(b"a/")
    reader.barrier()
    for _ in range(25):
        writer.publish(b"a/b", b"1234")
    writer.barrier()
    assert len(reader.barrier()) == 25
    for pattern in (b"x", b"y", b"z"):
        reader.subscribe(pattern)
    reader.barrier()
    for _ in range(3_000):
        writer.publish(b"a/c", bytes(1_000))
    writer.barrier()
    lost = {user["uid"]: user for user in json.loads(bus.client().ask(controls.TOTALS))["users"]}[SECOND.uid]["lost_packets"]
    assert lost > 1_000
    one, two = str(FIRST.uid), str(SECOND.uid)
    # The tap has a queue of 50 packets too. What it misses is counted.
    in_tap = "sbus_prefix_messages_total + sbus_prefix_missed_messages_total"
    wait_for(lambda: prometheus.query(in_tap) == {("a/",): 3_025}, "all messages in the tap")
    # A scrape that takes longer than its interval leaves no values for a moment.
    wait_for(lambda: {(two,): lost, (one,): 0}.items() <= prometheus.query("sbus_user_lost_packets_total").items(), "the losses")
    wait_for(lambda: prometheus.query(f'sbus_user_received_packets_total{{user="{one}"}}').get((one,), 0) >= 3_026, "the packets")
    wait_for(lambda: prometheus.query("sbus_messages_total") == {(): 3_025}, "the messages")
    wait_for(lambda: prometheus.query("sbus_user_quota_refusals_total") == {("subscriptions", two): 2}, "the refusals")
    wait_for(lambda: prometheus.query("sbus_lost_packets_total").get((), 0) >= lost, "all losses")
    wait_for(lambda: {"SbusLosses", "SbusQuotaRefusals", "SbusRestarted"} <= prometheus.alerts(), "the alerts")
    assert "SbusDown" not in prometheus.alerts()
    bus.stop()
    wait_for(lambda: prometheus.query("sbus_up") == {(): 0}, "the end of the bus")
    wait_for(lambda: "SbusDown" in prometheus.alerts(), "the alert")
    wait_for(lambda: prometheus.query('up{job="sbus"}') == {(): 1}, "an answer of the endpoint itself")
