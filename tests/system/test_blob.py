"""Large messages as a service: systemd starts sbus-blob on the first connection, in its sandbox, for the system and for a user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

SIZE = 50_000_000


@pytest.fixture(scope="module")
def serving(built: Packages) -> Iterator[Container]:
    """A machine with the package, whose socket an administrator has enabled."""
    machine = boot(built, installed=BUS)
    try:
        machine.run(f"{APT_INSTALL} /opt/packages/{built.blob.name}")
        machine.run("systemctl enable --now sbus-blob.socket")
        machine.run(f"head --bytes={SIZE} /dev/zero | tr '\\0' '\\1' >/tmp/large; chmod 644 /tmp/large")
        yield machine
    finally:
        machine.stop()


def test_nothing_runs_unasked(serving: Container) -> None:
    assert serving.output("systemctl is-active sbus-blob.service || true") == "inactive"
    assert serving.output("stat --format=%a /run/sbus-blob.socket") == "666"


def test_a_blob_crosses_users(serving: Container) -> None:
    reader = "python3 /opt/programs/blob_reader.py big/"
    serving.run(f"setsid sh -c '{reader} >/tmp/read 2>&1' </dev/null >/dev/null 2>&1 &", user="bob")
    serving.wait_for("grep --quiet ready /tmp/read")
    serving.run("sbusctl pub --blob /tmp/large --expire 600 big/file", user="alice")
    uid = serving.output("id -u alice")
    serving.wait_for(f"grep --quiet '^{SIZE} {uid} {SIZE}$' /tmp/read")


def test_it_runs_as_its_user_without_capabilities(serving: Container) -> None:
    pid = serving.output("systemctl show --value --property=MainPID sbus-blob.service")
    assert serving.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-blob", "CapEff:", "0" * 16]
    assert serving.output(f"awk '/^Max open files/ {{ print $4 }}' /proc/{pid}/limits") == "16384"


def test_the_rules_of_the_package_let_it_ask_the_bus(serving: Container) -> None:
    """The right presence, also if the package of the link gives it to users."""
    script = (
        "from sbus import Bus\n"
        "bus = Bus.connect()\n"
        "number = bus.address.split('/')[2]\n"
        "print(bytes(bus.get_blob(bus.publish_blob('a', b'mine', to=f'conn:{number}')).data).decode())\n"
    )
    serving.run("cat >/tmp/own.py; chmod 644 /tmp/own.py", stdin=script)
    assert serving.output("python3 /tmp/own.py", user="alice") == "mine"


def test_a_kill_is_survived(serving: Container) -> None:
    before = serving.output("systemctl show --value --property=MainPID sbus-blob.service")
    serving.run("systemctl kill --signal=KILL --kill-whom=main sbus-blob.service")
    serving.wait_for(f"test $(systemctl show --value --property=MainPID sbus-blob.service) != {before} && sbusctl blob list")
    assert "unknown ticket" in serving.run("sbusctl blob get aaaaaaaaaaaaaaaaaaaaaaaaaa | cat", check=False).stderr


def test_the_journal_explains_its_records(serving: Container) -> None:
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-blob.catalog"))}
    serving.wait_for("journalctl --catalog SBUS_EVENT=started SYSLOG_IDENTIFIER=sbus-blob | grep 'large messages has started'")
    assert "The service for large messages has started" in subjects


def test_a_user_has_blobs_on_the_own_bus(serving: Container) -> None:
    serving.run("loginctl enable-linger alice")
    serving.wait_for("systemctl is-active user@$(id -u alice).service")
    serving.run("systemctl --user --machine=alice@ enable --now sbus.socket sbus-blob.socket")
    serving.run("XDG_RUNTIME_DIR=/run/user/$(id -u) sbusctl --user pub --blob /tmp/large a", user="alice")
    listed = serving.output("XDG_RUNTIME_DIR=/run/user/$(id -u) sbusctl --user --json=short blob list", user="alice")
    assert f'"size":{SIZE}' in listed.replace(" ", "")


def test_an_enabled_socket_is_there_again_after_removal_and_installation(serving: Container, built: Packages) -> None:
    serving.run(f"apt-get remove --yes --quiet=2 sbus-blob && {APT_INSTALL} /opt/packages/{built.blob.name}")
    assert serving.output("systemctl is-active sbus-blob.socket") == "active"


def test_removal_leaves_nothing_behind(serving: Container) -> None:
    serving.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes --quiet=2 sbus-blob && systemctl daemon-reload")
    assert serving.run("pgrep --list-full --uid sbus-blob", check=False).stdout == ""
    found = "find / -xdev \\( -name '*sbus-blob*' -o -name 'blob.toml' \\) -not -path '/opt/*' -not -path '/proc/*' -not -path '/var/lib/*'"
    assert serving.output(f"{found} -not -path '/sys/*' -not -path '/home/*'") == ""
