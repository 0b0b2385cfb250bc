"""The bus in a browser as a service of a user: with the hardening of its unit, and with the aiohttp of the distribution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, USERS, boot

UNIT = "sbus-web.service"


@pytest.fixture(scope="module")
def serving(built: Packages) -> Iterator[Container]:
    """A machine on which both users can have a gateway for the system bus, and alice has one."""
    machine = boot(built, installed=BUS)
    try:
        machine.run(f"{APT_INSTALL} /opt/packages/{built.web.name}")
        for user in USERS:
            machine.run(f"loginctl enable-linger {user}")
            machine.wait_for(f"systemctl is-active user@$(id -u {user}).service")
        machine.run(f"systemctl --user --machine=alice@ enable --now {UNIT}")
        yield machine
    finally:
        machine.stop()


def file_of(machine: Container, user: str) -> str:
    """Return the file with the link of *user*."""
    return f"/run/user/{machine.output(f'id -u {user}')}/sbus-web/url"


def test_no_user_has_a_gateway_unasked(serving: Container) -> None:
    assert serving.run(f"systemctl --user --machine=bob@ is-enabled {UNIT}", check=False).stdout.strip() == "disabled"
    assert serving.run(f"test -e {file_of(serving, 'bob')}", check=False).status != 0


def test_the_owner_of_the_link_uses_the_bus_as_that_user(serving: Container) -> None:
    file = file_of(serving, "alice")
    uid, gid = serving.output("id -u; id -g", user="alice").split()
    for _ in range(2):
        before = serving.output(f"cat {file}", user="alice")
        user, message, names = serving.output(f"python3 /opt/programs/web_session.py {file}", user="alice").splitlines()
        assert user.startswith(f"!/cred/{gid}/{uid}/")
        assert message == f"hello {uid}"
        assert "alice" in names.split()
        assert serving.output(f"cat {file}", user="alice") != before


def test_the_link_is_a_secret_of_its_user(serving: Container) -> None:
    file = file_of(serving, "alice")
    assert serving.output(f"stat --format=%a {file}", user="alice") == "600"
    assert serving.run(f"cat {file}", user="bob", check=False).status != 0
    token = serving.output(f"cat {file}", user="alice").partition("token=")[2]
    assert len(token) >= 43
    assert "token=" not in serving.journal("--all --output=verbose SYSLOG_IDENTIFIER=sbus-web")


def test_another_user_with_the_link_is_not_served(serving: Container) -> None:
    serving.run(f"install --mode=644 {file_of(serving, 'alice')} /tmp/stolen")
    stolen = serving.run("python3 /opt/programs/web_session.py /tmp/stolen", user="bob", check=False)
    assert stolen.status != 0
    assert "hello" not in stolen.stdout
    uid = serving.output("id -u bob")
    serving.wait_for(f"journalctl SBUS_EVENT=other-user --output=verbose | grep SBUS_USER={uid}")


def test_the_journal_explains_its_records(serving: Container) -> None:
    serving.wait_for("journalctl --catalog SBUS_EVENT=started SYSLOG_IDENTIFIER=sbus-web | grep 'The WebSocket gateway has started'")


def test_a_kill_is_survived_with_a_new_link(serving: Container) -> None:
    file = file_of(serving, "alice")
    before = serving.output(f"cat {file}", user="alice")
    serving.run(f"systemctl --user --machine=alice@ kill --signal=KILL --kill-whom=main {UNIT}")
    serving.wait_for(f"test -e {file} && test $(cat {file}) != '{before}'")
    assert "hello" in serving.output(f"python3 /opt/programs/web_session.py {file}", user="alice")


def test_removal_leaves_nothing_behind(serving: Container) -> None:
    serving.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes --quiet=2 sbus-web")
    assert serving.run("pgrep --list-full --full /usr/bin/sbus-we[b]", check=False).stdout == ""
    assert serving.run(f"test -e {file_of(serving, 'alice')}", check=False).status != 0
    serving.run(f"systemctl --user --machine=alice@ disable {UNIT}", check=False)
    assert serving.output("find / -xdev -name '*sbus-web*' -not -path '/opt/*' -not -path '/proc/*' -not -path '/var/lib/systemd/*'") == ""
