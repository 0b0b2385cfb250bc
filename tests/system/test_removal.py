"""Removing the packages leaves no file, process or socket of theirs behind; the users stay, locked, and own nothing."""

from __future__ import annotations

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import install

_ACCOUNTS = "cat /etc/passwd /etc/group /etc/shadow /etc/gshadow"

_THEIR_OWN = (
    "proc",
    "sys",
    "dev",
    "tmp",
    "opt",
    "run/host",
    "var/log/journal",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/lib/systemd",
)
"""Where the kernel, systemd and dpkg keep their own account of what happened."""


_STATES = "/var/lib/systemd /run/systemd /etc/systemd"
"""Where systemd keeps its state of units."""


def files(machine: Container) -> set[str]:
    """Return all files that a package could have left."""
    skipped = " -o ".join(f"-path /{folder}" for folder in _THEIR_OWN)
    return set(machine.output(rf"find / -ignore_readdir_race \( {skipped} \) -prune -o -print").splitlines())


def bus_files(machine: Container) -> set[str]:
    """Return the files of the bus and its add-ons, also where systemd keeps its state of units."""
    skipped = " ".join(f"! -path '*/{folder}/*'" for folder in ("journal", "coredump", "transient", "units", "propagate"))
    found = files(machine) | set(machine.output(f"find {_STATES} -ignore_readdir_race -name '*sbus*' {skipped}").splitlines())
    return {path for path in found if "sbus" in path or "msgbus" in path}


def test_removal_and_purge_leave_nothing_behind(bare: Container, built: Packages) -> None:
    bare.run("loginctl enable-linger alice")
    bare.wait_for("systemctl is-active user@$(id -u alice).service")
    users = bare.output(_ACCOUNTS).splitlines()
    before = files(bare)

    install(bare, built)
    bare.run("touch /etc/sbus/lab.toml; systemctl enable --now sbus@lab.socket sbus-feed@netlink.service; sbusctl whoami")
    bare.run("sbusctl whoami --address /run/sbus/lab.socket")
    bare.run("systemctl --user enable --now sbus.socket && sbusctl whoami --user", user="alice")
    assert {"/run/sbus.socket", "/run/sbus/lab.socket", "/usr/bin/sbusd", "/etc/sbus/sbusd.toml"} < files(bare)

    bare.run("apt-get remove --yes --quiet=2 sbusd python3-sbusd && systemctl daemon-reload")
    assert bare.run("pgrep --list-full 'sbusd|sbus-feed'", check=False).stdout == ""
    left = {path for path in files(bare) - before if "sbus" in path}
    # The configuration stays until purge, as do the links that enabled what might come back.
    assert {path for path in left if not path.startswith(("/etc/sbus", "/etc/systemd", "/home/alice/.config/systemd"))} == set()
    assert "/etc/sbus/sbusd.toml" in left

    bare.run("rm /etc/sbus/lab.toml")  # it was the administrator's
    bare.run("apt-get purge --yes --quiet=2 sbusd python3-sbusd && systemctl daemon-reload")
    left = {path for path in files(bare) - before if "sbus" in path}
    # What alice has enabled is hers.
    assert {path for path in left if not path.startswith("/home/alice")} == set()
    # A number that is free again would be the next user's, and with it each file that was the old one's.
    stayed = [line for line in bare.output(_ACCOUNTS).splitlines() if line not in users]
    assert {line.split(":")[0] for line in stayed} == {"sbus", "sbus-feed", "sbus-dbus"}
    assert all(line.split(":")[1][:1] in {"!", "*", "x"} for line in stayed)
    assert bare.output("find / -xdev \\( -user sbus -o -user sbus-feed -o -user sbus-dbus \\) ! -path '/proc/*'") == ""
    assert bare.run("systemctl list-units --all --plain --no-legend 'sbus*'").stdout == ""
    assert "sbus" not in bare.output("journalctl --list-catalog")
