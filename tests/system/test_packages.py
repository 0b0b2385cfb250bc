"""The packages: what lintian, rpmlint and autopkgtest say of them, and that an upgrade reaches every bus that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container, boot_root
from tests.support.packages import Packages
from tests.system.conftest import BUS, boot, install
from tools.packages import debian, rpm
from tools.packages.roots import BUILD, root_of
from tools.packages.sandbox import run_in
from tools.stage import ROOT


@pytest.fixture(scope="module")
def rpms(built: Packages) -> Path:
    """A folder with this tree's RPMs; what can build the others can build them. The spec gets the wheel that they were built of."""
    (wheel,) = (built.folder / debian.WHEEL).iterdir()
    return rpm.rpm_packages(wheel)


@pytest.fixture
def rpm_machine(rpms: Path) -> Iterator[Container]:
    """A machine with the RPMs in /opt/packages."""
    machine = Container(boot_root(), binds={rpms: "/opt/packages"})
    yield machine
    machine.stop()


def test_lintian_finds_nothing_to_change(built: Packages, tmp_path: Path) -> None:
    """It unpacks every package, and runs most of its checks on every file."""
    log = tmp_path / "log"
    assert debian.lint(built.folder, log) == 0, log.read_text()


def test_lintian_would_find_a_mistake(built: Packages, tmp_path: Path) -> None:
    """Without the overrides it reports the tags that they cover."""
    log = tmp_path / "log"
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / built.bus.name).write_bytes(built.bus.read_bytes())
    command = ["lintian", "--no-override", *debian.LINT_OPTIONS, built.bus.name]
    assert run_in(root_of(BUILD), copies, command, log=log, check=False) != 0
    assert "W: sbusd: initial-upload-closes-no-bugs" in log.read_text()


def test_make_rpm_builds_a_wheel_from_source_by_the_command_that_built_this_one(built: Packages, tmp_path: Path) -> None:
    """The packages of Debian were compiled by it, and the RPMs of the other tests get what it made."""
    (tmp_path / "macros").write_bytes((ROOT / "packaging/rpm/macros.fallback").read_bytes())
    log = tmp_path / "log"
    assert run_in(root_of(BUILD), tmp_path, ["rpm", "--load", "macros", "--eval", "%pyproject_wheel"], log=log, check=False) == 0
    command, _, options = log.read_text().splitlines()[-1].partition(" -m build ")
    assert command.startswith("CFLAGS=")
    (other,) = [line for line in (built.folder / debian.LOG).read_text().splitlines() if "python3" in line and " -m build " in line]
    words = other.partition(" -m build ")[2].split()
    assert set(options.split()) - {"pyproject-wheeldir", "."} == {word for word in words if word.startswith("-")}


def test_rpmlint_finds_nothing_to_change(rpms: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert rpm.lint(rpms, log) == 0, log.read_text()
    assert "0 errors, 0 warnings" in log.read_text()


def test_the_root_stays_as_it_is(built: Packages, tmp_path: Path) -> None:
    """A build can write to its own folder and to a /tmp that is gone afterwards; and it has no network."""
    log = tmp_path / "log"
    script = "touch here /tmp/there && ! touch /etc/it 2>/dev/null && ! touch /srv/it 2>/dev/null && tail -n +3 /proc/net/dev | cut -d: -f1"
    assert run_in(root_of(BUILD), tmp_path, ["sh", "-c", script], log=log, check=False) == 0
    assert log.read_text().split("\n", 1)[1].split() == ["lo"]
    assert (tmp_path / "here").exists()
    assert not (root_of(BUILD) / "tmp/there").exists()


def test_both_kinds_of_package_have_the_same_files(built: Packages, rpms: Path, tmp_path: Path) -> None:
    """Apart from where each distribution puts Python packages, documentation, and its own notes."""
    for path in [*built.folder.glob("*.deb"), *rpms.glob("*.rpm")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    log = tmp_path / "log"
    script = "for each in sbus*.deb python3-sbusd_*.deb libsbus-dev_*.deb; do dpkg-deb --fsys-tarfile $each | tar --list; done >deb"
    run_in(root_of(BUILD), tmp_path, ["sh", "-c", script], log=log)
    script = "rpm --query --package --list --dbpath /tmp/rpmdb $(ls *.rpm | grep --invert-match src) >rpm"
    run_in(root_of(BUILD), tmp_path, ["sh", "-c", script], log=log)
    assert _files(tmp_path / "deb") == _files(tmp_path / "rpm")
    assert {"/usr/bin/sbusd", "/usr/share/bash-completion/completions/sbusctl"} <= _files(tmp_path / "deb")


def _files(listed: Path) -> set[str]:
    """Return the files in the list *listed* that are in packages of either kind."""
    ours = set()
    names = {line.removeprefix(".").rstrip("/") for line in listed.read_text().splitlines() if not line.endswith("/")}
    for name in names:
        if "/share/doc" in name or "/share/lintian" in name or ".dist-info" in name:
            continue
        # Debian has a folder of its own for zsh.
        name = name.replace("/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/")  # noqa: PLW2901
        python = name.partition("-packages/")
        ours.add(f"python/{python[2]}" if python[1] else name)
    folders = {str(Path(name).parent) for name in ours}
    return {name for name in ours if name not in folders and name not in {"/etc/sbus", "/etc/sbus/sbusd.toml.d"}}


def test_autopkgtest_passes(bare: Container, built: Packages) -> None:
    """In the manner of Debian's own machines, on the packages as they were built."""
    bare.run("mkdir --parents /tmp/tree/debian")
    for name in ("control", "changelog", "tests/control", "tests/installed-bus"):
        script = f"mkdir --parents $(dirname /tmp/tree/debian/{name}) && cat >/tmp/tree/debian/{name} && chmod +x /tmp/tree/debian/{name}"
        bare.run(script, stdin=(ROOT / "packaging/debian" / name).read_text())
    packages = " ".join(f"/opt/packages/{name}" for name in built.names)
    # A booted container is what the restriction asks for; autopkgtest cannot see that from within one.
    options = "--ignore-restrictions=isolation-container --no-built-binaries"
    done = bare.run(f"cd /tmp && autopkgtest {options} {packages} /tmp/tree -- null 2>&1")
    assert "installed-bus        PASS" in done.stdout
    assert "a message to a private key reached its owner, and another user was rejected" in done.stdout


@pytest.fixture
def upgradable(built: Packages, newer: Packages) -> Iterator[Container]:
    """A machine with the bus, and newer packages in /opt/newer."""
    machine = boot(built, {newer.folder: "/opt/newer"}, installed=BUS)
    yield machine
    machine.stop()


def test_an_upgrade_restarts_every_bus_that_runs_and_no_other(upgradable: Container, newer: Packages) -> None:
    """The system's bus, a named one, and a user's; not another user's, which no client has started."""
    upgradable.run("touch /etc/sbus/lab.toml && systemctl enable --quiet --now sbus@lab.socket")
    upgradable.run("sbusctl whoami --address /run/sbus/lab.socket && sbusctl whoami")
    for user in ("alice", "bob"):
        upgradable.run(f"loginctl enable-linger {user}")
        upgradable.wait_for(f"systemctl is-active user@$(id --user {user}).service")
        upgradable.run(f"systemctl --user --machine {user}@ enable --quiet --now sbus.socket")
    upgradable.run("sbusctl whoami --user", user="alice")
    ask = "systemctl show --value --property=MainPID sbus.service sbus@lab.service; for user in alice bob; do "
    ask += "systemctl --user --machine $user@ show --value --property=MainPID sbus.service; done"
    before = upgradable.output(ask).split()
    install(upgradable, newer, "/opt/newer")
    after = upgradable.output(ask).split()
    assert [process != "0" for process in before] == [process != "0" for process in after] == [True, True, True, False]
    assert not set(before[:3]) & set(after)
    assert f"Version: {newer.version}" in upgradable.output("dpkg-query --status sbusd").splitlines()


def test_the_rpms_install_and_serve(rpm_machine: Container) -> None:
    """On Debian, whose dependencies have other names, and Python packages other paths."""
    rpm_machine.run("mkdir --parents /etc/systemd/system/sbus.service.d")
    site = rpm_machine.output("""python3 -c 'import sysconfig; print(sysconfig.get_path("platlib", "posix_prefix"))'""")
    rpm_machine.run("cat >/etc/systemd/system/sbus.service.d/python.conf", stdin=f"[Service]\nEnvironment=PYTHONPATH={site}\n")
    rpm_machine.run(
        "rpm --install --nodeps --dbpath /tmp/rpmdb $(ls /opt/packages/*.rpm | grep --invert-match src) && systemctl start sbus.socket"
    )
    assert rpm_machine.output("id --user --name sbus") == "sbus"
    assert rpm_machine.output("id --user --name sbus-relay; systemctl is-enabled sbus-relay.service || true").split() == [
        "sbus-relay",
        "disabled",
    ]
    assert rpm_machine.output("systemctl is-enabled sbus.socket") == "enabled"
    assert rpm_machine.output(f"PYTHONPATH={site} sbusctl whoami").startswith("!/cred/0/0/")
    assert rpm_machine.output("systemctl show --value --property=User sbus.service") == "sbus"
    rpm_machine.run(
        "rpm --erase --dbpath /tmp/rpmdb sbusd python3-sbusd sbus-relay sbus-link sbus-store sbus-trigger sbus-metrics sbus-blob sbus-web "
        "sbus-recorder sbus-devel"
    )
    assert rpm_machine.run("systemctl is-active sbus.service", check=False).stdout == "inactive\n"
    assert rpm_machine.run("ls /usr/bin/sbusd /etc/sbus /run/sbus.socket", check=False).stdout == ""
