"""What every test can ask for; tests/support/ has the code behind it.

``make check`` runs the tests in several workers, see :func:`pytest_xdist_auto_num_workers`. All tests of a file run in one worker, so
that fixtures of scope "module" are made once. Whatever else tests share must be safe to use from several processes: names and
addresses contain a process id, and caches are locked.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, settings

from tests.support import skips
from tests.support.users import FIRST, SECOND, User
from tools.stage import Stage, make_stage, open_folder

# No test may depend on how fast the machine is, nor on what else it does.
settings.register_profile("sbusd", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sbusd")

LONGEST = ("test_pipeline_program.py", "test_pipeline.py")
"""Files that take minutes each. They start before all other files but the one that builds the packages."""

FOLDERS = ("faults", "attacks", "soak", "fuzz", "system", "integration", "sanitize", "property", "contract", "unit")
"""Folders of tests, those with the longest files first: a long file that starts last keeps one worker busy when all others are done."""

PACKAGES = "built"
"""The fixture of the packages of this tree. The first file that uses it starts before all others and builds them, which takes up to two
minutes; other files that use it come later, or their workers would only wait for that."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --strict-skips."""
    parser.addoption("--strict-skips", action="store_true", help="a skipped test that could run on this machine fails (also: CI=true)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return three workers for two processors: tests wait for a third of their time."""
    return (3 * len(os.sched_getaffinity(0)) + 1) // 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests into the order in which workers get their files. It is the same in each worker, as it must be."""
    builder = next((item.path for item in items if PACKAGES in getattr(item, "fixturenames", ())), None)
    items.sort(key=lambda item: (item.path != builder, item.path.name not in LONGEST, _place(item)))


def pytest_collection_finish() -> None:
    """Leave what all tests share out of garbage collection: tests that measure memory collect a thousand times."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> int:
    """Return the place of the folder of *item* in :data:`FOLDERS`; a folder that is not there comes first."""
    parts = PurePosixPath(item.nodeid).parts
    return FOLDERS.index(parts[1]) if len(parts) > 1 and parts[1] in FOLDERS else -1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped but could have run, where that was asked for."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and skips.is_strict(item.config.getoption("--strict-skips")):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that was skipped as a whole but could have run, where that was asked for."""
    report = yield
    if report.skipped and skips.is_strict(collector.config.getoption("--strict-skips")):
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make the skip *report* a failure unless it is honest."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.endswith(skips.HONEST_MARK):
        report.outcome = "failed"
        report.longrepr = f"skipped, but could run on this machine: {reason}"


@pytest.fixture
def needs_root() -> None:
    """Skip the test unless it runs as root."""
    skips.require_root()


@pytest.fixture
def needs_systemd_socket_activate() -> None:
    """Skip the test unless systemd-socket-activate(1) is there."""
    skips.require_program("systemd-socket-activate", "systemd")


@pytest.fixture
def needs_namespaces(needs_root: None) -> None:
    """Skip the test unless it may make network and mount namespaces."""
    skips.require_namespaces()


@pytest.fixture
def first_user(needs_root: None) -> User:
    """A user that is not root."""
    return FIRST


@pytest.fixture
def second_user(needs_root: None) -> User:
    """Another user, with one supplementary group in common with the first."""
    return SECOND


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path that every user can enter, unlike pytest's own tmp_path; only its owner can write to it."""
    path = open_folder()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Where a test user finds Python and this project."""
    made = make_stage()
    yield made
    made.remove()
