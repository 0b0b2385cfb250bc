"""Metrics as a service: systemd starts sbus-metrics on the first scrape, in its sandbox, and an administrator has them at once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.metrics_endpoint import Values, samples
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

URL = "http://127.0.0.1:19722/metrics"


@pytest.fixture(scope="module")
def machine(built: Packages) -> Iterator[Container]:
    """A machine with the package, as after its installation."""
    made = boot(built, installed=BUS)
    try:
        made.run(f"{APT_INSTALL} /opt/packages/{built.metrics.name}")
        yield made
    finally:
        made.stop()


def scrape(machine: Container, user: str = "root") -> Values:
    """Return all samples that *user* gets."""
    return samples(machine.output(f"curl --silent --fail {URL}", user=user), is_openmetrics=False)


def test_nothing_listens_before_an_administrator_wants_it(machine: Container) -> None:
    assert machine.output("systemctl is-enabled sbus-metrics.socket || true") == "disabled"
    assert machine.output("systemctl is-active sbus-metrics.socket sbus-metrics.service || true").split() == ["inactive", "inactive"]


def test_the_first_scrape_starts_it(machine: Container) -> None:
    machine.run("systemctl start sbus-metrics.socket")
    assert machine.output("systemctl is-active sbus-metrics.service || true") == "inactive"
    found = scrape(machine)
    assert found[("sbus_up",)] == 1
    assert machine.output("systemctl is-active sbus-metrics.service") == "active"
    for _ in range(3):
        machine.run("sbusctl pub some/key text", user="alice")
    later = scrape(machine)
    assert later[("sbus_messages_total",)] - found[("sbus_messages_total",)] == 3
    assert later[("sbus_user_received_packets_total", "alice")] >= 3
    by_unix = machine.output("curl --silent --fail --unix-socket /run/sbus-metrics.socket http://localhost/metrics")
    assert samples(by_unix, is_openmetrics=False)[("sbus_up",)] == 1


def test_only_root_and_prometheus_may_scrape(machine: Container) -> None:
    assert machine.output(f"curl --silent --output /dev/null --write-out '%{{http_code}}' {URL}", user="alice") == "403"
    machine.run("useradd --system --no-create-home prometheus")
    machine.wait_for(f"runuser -u prometheus -- curl --silent --fail --output /dev/null {URL}")


def test_it_runs_as_its_user_in_its_sandbox(machine: Container) -> None:
    pid = machine.output("systemctl show --value --property=MainPID sbus-metrics.service")
    assert machine.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-metrics", "CapEff:", "0" * 16]
    report = json.loads(machine.output("systemd-analyze security --json=short sbus-metrics.service"))
    exposed = {each["json_field"] for each in report if each.get("exposure") and float(each["exposure"]) >= 0.2}
    assert exposed <= {
        "PrivateNetwork",
        "PrivateUsers",
        "RestrictAddressFamilies_AF_INET_INET6",
        "IPAddressDeny",
        "RootDirectoryOrRootImage",
    }


def test_the_bus_starts_again_between_two_scrapes(machine: Container) -> None:
    before = scrape(machine)
    machine.run("systemctl restart sbus.service")
    assert scrape(machine)[("sbus_messages_total",)] >= before[("sbus_messages_total",)]
    machine.run("systemctl kill --signal=KILL --kill-whom=main sbus.service")
    machine.wait_for(f"curl --silent --fail {URL} | grep --quiet '^sbus_up 1'")
    assert scrape(machine)[("sbus_start_time_seconds",)] > before[("sbus_start_time_seconds",)]


def test_prefixes_need_the_right_tap(machine: Container) -> None:
    machine.run("mkdir -p /etc/sbus/metrics.toml.d && echo 'prefixes = [\"net/\"]' >/etc/sbus/metrics.toml.d/10-net.toml")
    machine.run("systemctl stop sbus-metrics.service")
    assert scrape(machine)[("sbus_prefix_up", "net/")] == 0
    machine.run(
        "printf '[rights]\\ntap = { users = [\"sbus-metrics\"] }\\n' >/etc/sbus/sbusd.toml.d/60-metrics.toml && systemctl reload sbus"
    )
    machine.wait_for(f"curl --silent --fail {URL} | grep --quiet '^sbus_prefix_up{{prefix=\"net/\"}} 1'")
    machine.run("sbusctl pub net/a text && sbusctl pub other/a text")
    machine.wait_for(f"curl --silent --fail {URL} | grep --quiet '^sbus_prefix_messages_total{{prefix=\"net/\"}} 1'")


def test_the_file_for_node_exporter(machine: Container) -> None:
    machine.run("sbusctl stats --textfile /tmp/sbus.prom")
    assert samples(machine.output("cat /tmp/sbus.prom"), is_openmetrics=False)[("sbus_up",)] == 1


def test_removal_leaves_nothing(machine: Container) -> None:
    machine.run("DEBIAN_FRONTEND=noninteractive apt-get purge -y sbus-metrics")
    assert machine.output("ls -d /etc/sbus/metrics.toml /usr/share/sbus-metrics /run/sbus-metrics.socket 2>/dev/null || true") == ""
    assert machine.output("systemctl list-units --all --plain --no-legend 'sbus-metrics*'") == ""
    assert machine.run(f"curl --silent {URL}", check=False).status != 0
