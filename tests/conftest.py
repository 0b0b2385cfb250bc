"""What every test can ask for; tests/support/ has the code behind it.

``make test`` runs the tests in several workers, see :func:`pytest_xdist_auto_num_workers`. All tests of a file run in one worker, so
that fixtures of scope "module" are made once. Whatever else tests share must be safe to use from several processes: names and
addresses contain a process id, and caches are locked.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import costs, examples, skips, tiers
from tests.support.users import FIRST, SECOND, User
from tools.stage import Stage, make_stage, open_folder

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]
    from xdist.scheduler import Scheduling  # type: ignore[import-untyped]

TOGETHER = "tests/integration/spark/"
"""A folder whose files share a fixture of scope "package", so that they all run in one worker."""

LONGEST = ("test_pipeline.py", "test_live_sums.py", "test_small_runs.py", "test_spark_source.py", "test_pipeline_program.py")
"""Files that take minutes each, those of :data:`TOGETHER` too. They start before all other files but the one that builds the packages."""

PACKAGES = "built"
"""The fixture of the packages of this tree. The first file that uses it starts before all others and builds them, which takes up to two
minutes; other files that use it come later, or their workers would only wait for that."""


STARTED = tiers.StartedPrograms()

BEGAN = pytest.StashKey[float]()
"""The processor time when a test began."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tests/support."""
    parser.addoption("--strict-skips", action="store_true", help="a skipped test that could run on this machine fails (also: CI=true)")
    parser.addoption("--costs", type=int, default=0, help="show the N tests that take the most processor time, and why they do")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the tiers, choose how many examples are tried, and begin to watch what tests start."""
    for tier, meaning in tiers.TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {meaning}")
    examples.use("part" if config.option.markexpr == "fast" else "all")
    STARTED.watch()
    # A shell without job control starts a background command with SIGINT ignored, and the programs that tests interrupt inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return three workers for two processors: tests wait for a third of their time."""
    return (3 * len(os.sched_getaffinity(0)) + 1) // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Return what gives workers a file at a time, and the files of :data:`TOGETHER` at once."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler: Scheduling = LoadFileScheduling(config, log)
    place_of_file = scheduler._split_scope
    scheduler._split_scope = lambda test: TOGETHER if test.startswith(TOGETHER) else place_of_file(test)
    return scheduler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests their tiers, and put them into the order in which workers get their files: the same in each worker, as it must be."""
    for item in items:
        tiers.give_tier(item)
    builder = next((item.path for item in items if PACKAGES in getattr(item, "fixturenames", ())), None)
    items.sort(key=lambda item: (item.path != builder, item.path.name not in LONGEST, _place(item)))


def pytest_collection_finish() -> None:
    """Leave what all tests share out of garbage collection: tests that measure memory collect a thousand times."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> int:
    """Return the place of the folder of *item* in ``tiers.FOLDERS``; a folder that is not there comes first."""
    folder = tiers.folder_of(item)
    return list(tiers.FOLDERS).index(folder) if folder else -1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Begin to see what the test *item* starts, and to measure its processor time."""
    STARTED.begin()
    item.stash[BEGAN] = costs.processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped but could have run, where that was asked for, and a fast one that has started a program."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and skips.is_strict(item.config.getoption("--strict-skips")):
        _refuse_skip(report)
    if report.when == "teardown":
        docstring = getattr(getattr(item, "function", None), "__doc__", None)
        costs.note(report, docstring, costs.processor_seconds() - item.stash[BEGAN])
    if report.when == "teardown" and report.passed and item.get_closest_marker("fast") and STARTED.refused():
        report.outcome = "failed"
        report.longrepr = f"a fast test that starts {', '.join(STARTED.refused())}: mark it slow (tests/support/tiers.py)"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that was skipped as a whole but could have run, where that was asked for."""
    report = yield
    if report.skipped and skips.is_strict(collector.config.getoption("--strict-skips")):
        _refuse_skip(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where costs were asked for, a costly test without a reason makes the whole run fail."""
    if session.config.getoption("--costs") and costs.unreasoned(_costs(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the tests that take the most processor time, where that was asked for."""
    if count := config.getoption("--costs"):
        terminalreporter.section("processor time")
        for line in costs.lines(_costs(config), count):
            terminalreporter.line(line)


def _costs(config: pytest.Config) -> list[costs.Cost]:
    """Return what the tests took that this process has reports of; a worker has a reporter too, and shows nothing."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return costs.costs(report for reports in reporter.stats.values() for report in reports) if reporter is not None else []


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
