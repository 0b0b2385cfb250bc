"""Every unit, manual page, script, configuration file and part of the Python package is in one package, Debian's and RPM's alike."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tools.packages.sources import source_files
from tools.stage import HOUSES, ROOT

DEBIAN = ROOT / "packaging/debian"
SPEC = ROOT / "packaging/rpm/sbusd.spec"
COMPLETION = Path("sbusctl/completion")

_PLACES = {
    "%{_bindir}/": "usr/bin/",
    "%{_unitdir}/": "units/system/",
    "%{_userunitdir}/": "units/user/",
    "%{_presetdir}/": "units/system-preset/",
    "%{_userpresetdir}/": "units/user-preset/",
    "%{_sysusersdir}/": "units/sysusers.d/",
    "%{_datadir}/dbus-1/": "units/dbus-1/",
    "%{_journalcatalogdir}/": "units/catalog/",
    "%{_sysconfdir}/sbus/": "etc/",
    "%{_datadir}/sbus/": "etc/sbusd.toml.d/",
    "%{_datadir}/sbus-metrics/": "etc/prometheus/",
    "%{sbusdir}/": "etc/",
    "%{python3_sitearch}/": "",
    "%{_includedir}/": "clients/c/",
    "%{_datadir}/pkgconfig/": "clients/c/",
    "%{_datadir}/bash-completion/completions/": "completion/",
    "%{_datadir}/zsh/site-functions/": "completion/",
    "%{_datadir}/fish/vendor_completions.d/": "completion/",
}
"""Where the spec installs files, and where they are here."""


def _things() -> set[str]:
    """Return all that has to be in a package.

    These are paths here, ``usr/bin/NAME`` for scripts, ``completion/NAME`` for scripts of shells, and ``sbusd/NAME`` for parts of
    Python packages.
    """
    files = source_files()
    # The client for Node is a package of its own, for npm.
    things = {str(path) for path in files if path.parts[0] in {"units", "man", "etc"} or path.parts[:2] == ("clients", "c")}
    things |= {f"completion/{path.name}" for path in files if path.parent == COMPLETION and path.suffix != ".py"}
    things |= {f"usr/bin/{name}" for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]}
    return things | {"/".join(path.parts[:2]) for path in files if path.parts[0] in {*HOUSES, "pyspark_sbus"}}


def _debian_patterns() -> list[str]:
    """Return the patterns of what Debian's packages install."""
    paths = [path for suffix in ("install", "manpages") for path in DEBIAN.glob(f"*.{suffix}")]
    return [_here(line.split()[0]) for path in sorted(paths) for line in path.read_text().splitlines()]


def _here(pattern: str) -> str:
    """Return where here is what a Debian package installs by *pattern*; fnmatch lets a ``*`` match beyond a slash."""
    return pattern.removeprefix("usr/lib/python3*/dist-packages/").removeprefix("sbusctl/")


def _rpm_patterns() -> list[str]:
    """Return the patterns of what the RPMs install, the Python packages apart."""
    # The second name of sbus.service is a link, which the spec makes.
    listed = re.findall(
        r"^(?!\S*/sbusd\.service$)(?:%config\(noreplace\) )?(%\{\w+\}/\S+)$",
        SPEC.read_text().partition("\n%files\n")[2],
        flags=re.MULTILINE,
    )
    return [_in_tree(pattern) for pattern in listed]


def _in_tree(pattern: str) -> str:
    """Return where here is what the spec lists by *pattern*."""
    page = re.fullmatch(r"%\{_mandir\}/man\d/(\S+)\*", pattern)
    place = next((place for place in _PLACES if pattern.startswith(place)), "")
    return f"man/{page[1]}" if page else _PLACES.get(place, "") + pattern.removeprefix(place)


def _wrong(things: Iterable[str], patterns: list[str]) -> list[str]:
    """Return a line for each of *things* that is in no package or in two, and for each pattern that takes nothing."""
    taken = {thing: [p for p in patterns if fnmatchcase(thing, p) or thing.startswith(f"{p}/")] for thing in things}
    wrong = [f"{thing}: in no package" for thing, takers in taken.items() if not takers]
    wrong += [f"{thing}: {takers}" for thing, takers in taken.items() if len(takers) > 1]
    return wrong + [f"{p}: takes nothing" for p in patterns if not any(p in takers for takers in taken.values()) and "dist-info" not in p]


def test_debian_packages_have_everything_once() -> None:
    assert not _wrong(_things(), _debian_patterns())


def test_rpms_have_everything_once() -> None:
    things = {thing for thing in _things() if thing.partition("/")[0] not in HOUSES}  # %{pyproject_files}
    assert not _wrong(things, _rpm_patterns())


@pytest.mark.parametrize(
    ("things", "patterns", "says"),
    [
        ({"man/new.1"}, ["man/sbus*"], ["man/new.1: in no package", "man/sbus*: takes nothing"]),
        ({"man/sbus.7"}, ["man/sbus*", "man/sbus.7"], ["man/sbus.7: ['man/sbus*', 'man/sbus.7']"]),
        ({"usr/bin/sbus-recorder"}, ["usr/bin/sbus-recorder"], []),
        ({"sbusd/broker", "sbusd/py.typed"}, ["sbusd"], []),
        ({"units/catalog/sbusd.catalog"}, ["units/catalog"], []),
    ],
)
def test_a_mistake_would_be_found(things: set[str], patterns: list[str], says: list[str]) -> None:
    assert _wrong(things, patterns) == says


def test_the_spec_is_understood() -> None:
    assert _in_tree("%{_mandir}/man7/sbus.7*") == "man/sbus.7"
    assert _in_tree("%{_unitdir}/sbus@.socket") == "units/system/sbus@.socket"
    assert len(_rpm_patterns()) > 15
    tops = {Path(pattern).parts[0] for pattern in _rpm_patterns()}
    assert tops == {"usr", "units", "man", "etc", "clients", "completion", "pyspark_sbus"}
