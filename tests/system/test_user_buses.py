"""Each user's own bus, under the user's own systemd."""

from __future__ import annotations

import pytest

from tests.support.container import Container
from tests.system.conftest import USERS


@pytest.fixture(scope="module")
def lingering(machine: Container) -> Container:
    """A machine on which both users have a systemd and a bus of their own."""
    for user in USERS:
        machine.run(f"loginctl enable-linger {user}")
        machine.wait_for(f"systemctl is-active user@$(id -u {user}).service")
        machine.run(f"systemctl --user --machine={user}@ enable --now sbus.socket")
    return machine


def path_of(machine: Container, user: str) -> str:
    """Return where the bus of *user* is."""
    return f"/run/user/{machine.output(f'id -u {user}')}/sbus.socket"


def test_no_user_has_a_bus_unasked(fresh: Container) -> None:
    fresh.run("loginctl enable-linger alice")
    fresh.wait_for("systemctl is-active user@$(id -u alice).service")
    assert fresh.run("systemctl --user --machine=alice@ is-enabled sbus.socket", check=False).stdout.strip() == "disabled"
    assert fresh.run(f"test -e {path_of(fresh, 'alice')}", check=False).status != 0


def test_each_user_has_a_bus_that_runs_as_that_user(lingering: Container) -> None:
    for user in USERS:
        uid, gid = lingering.output("id -u; id -g", user=user).split()
        assert lingering.output("sbusctl whoami --user", user=user).startswith(f"!/cred/{gid}/{uid}/")
        pid = lingering.output(f"systemctl --user --machine={user}@ show --property=MainPID --value sbus.service")
        assert lingering.output(f"stat --format=%U /proc/{pid}") == user


def test_neither_user_reaches_the_others_bus(lingering: Container) -> None:
    for user, other in (USERS, USERS[::-1]):
        path = path_of(lingering, other)
        assert lingering.output("id -u", user=user) != lingering.output("id -u", user=other)
        refused = lingering.run(f"sbusctl whoami --address {path}", user=user, check=False)
        assert refused.status != 0
        assert "permission denied" in refused.stderr
        assert refused.stderr.count("\n") == 1
        # Not by the folder alone: the socket itself lets only its user in.
        assert lingering.output(f"stat --format=%a {path}") == "600"


def test_a_users_bus_sees_peer_credentials(lingering: Container) -> None:
    """A user's service in a user namespace would take everybody else for user 65534."""
    path = path_of(lingering, "alice")
    assert lingering.output(f"sbusctl whoami --address {path}").startswith("!/cred/0/0/")


def test_a_users_bus_has_the_users_configuration(lingering: Container) -> None:
    lingering.run("mkdir --parents .config/sbus && echo 'admins = [\"bob\"]' >.config/sbus/sbusd.toml", user="alice")
    reload = "systemctl --user --machine=alice@ kill --signal=HUP --kill-whom=main sbus.service"
    lingering.run(f"sbusctl whoami --address {path_of(lingering, 'alice')} && {reload}")
    lingering.wait_for("journalctl SBUS_EVENT=reloaded --output=verbose | grep SBUS_FILES=/home/alice/.config/sbus/sbusd.toml")


def test_a_second_bus_of_a_user_runs_independently(lingering: Container) -> None:
    lingering.run("mkdir --parents .config/sbus && touch .config/sbus/lab.toml && systemctl --user start sbus@lab.socket", user="bob")
    uid = lingering.output("id -u bob")
    assert lingering.output(f"sbusctl whoami --address /run/user/{uid}/sbus/lab.socket", user="bob").split("/")[3] == uid
    assert lingering.output("systemctl --user is-active sbus@lab.service", user="bob") == "active"
