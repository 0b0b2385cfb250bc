"""Everything that touches compiled code, under AddressSanitizer and UndefinedBehaviorSanitizer: ``python -m tests.sanitize.run``.

Builds in a folder of its own and leaves the virtual environment alone. First it shows that it can fail: deliberate errors in
canary.pyx must be found. Arguments are passed to pytest: options, and tests in place of the suites.

Ends with 0 if the tests pass and nothing was found in any process of theirs, daemons of other users too: what AddressSanitizer
finds is written to files, so that no output is lost; what UndefinedBehaviorSanitizer finds goes to standard error and ends the
process, which the tests look at.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.sanitize.build import STATUS, Build, make_build
from tests.sanitize.extensions import Extension, extensions_of
from tools.stage import ROOT

SUITES = (
    "tests/contract",
    "tests/unit/sbusd/dataplane",
    "tests/unit/sbusd/broker",
    "tests/unit/sbusd/state",
    "tests/unit/sbusd/restart",
    "tests/unit/sbusd/daemon",
    "tests/property",
    "tests/faults",
    "tests/fuzz",
    "tests/integration",
)
"""What runs compiled code."""

LEFT_OUT = {
    "tests/integration/relay": "Redis, and hosts of plain Python",
    "tests/integration/spark": "Spark: the sanitizer would be loaded into Java",
    "tests/integration/test_pipeline_program.py": "Spark",
    "tests/integration/test_ground_truth.py": "Spark",
    "tests/integration/test_report.py": "a browser",
    "tests/integration/test_journal_feed.py": "the feed bounds its own memory, of which a sanitizer takes terabytes",
    "tests/integration/test_distribution.py": "its programs run in an environment without the sanitizers",
    "tests/integration/test_demo.py": "it ends with Spark; other tests cover the earlier steps",
}
"""What does not touch compiled code of ours, or cannot be had under a sanitizer, and why."""

UNFIT = {
    "tests/contract/test_outbox.py::test_queues_share_one_copy_of_a_packet": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_the_charge_equals_the_used_memory": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_queues_are_freed_in_steps_and_charged_until_then": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_cached_keys_are_freed_in_steps_and_charged_until_then": "it asks the C allocator",
    "tests/contract/test_stream_rests.py::test_720_slow_streams_share_one_copy_of_a_message": "it asks the C allocator",
    "tests/contract/test_outbox.py::test_many_packets_through_queues_leave_no_memory_behind": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_an_idle_pattern_uses_less_than_200_bytes": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_a_pattern_never_uses_more_memory_than_its_charge": "it asks the C allocator",
    "tests/contract/test_memory_bounds.py::test_memory_of_a_drained_queue_is_not_faulted_in_again": "it asks the C allocator",
    "tests/integration/test_hostile_peers.py::test_churn_leaves_no_memory_behind": "a sanitizer keeps what is freed for a while",
    "tests/fuzz/test_fuzz.py::test_a_broken_invariant_is_found_and_kept": "its findings are those of Python code",
}
"""Tests that cannot pass under a sanitizer, and why."""

CANARIES = {
    "read_past_the_end(16)": "heap-buffer-overflow",
    "read_what_is_freed(16)": "heap-use-after-free",
    "overflow(1)": "signed integer overflow",
}
"""Deliberate errors, each with what must be said of it."""

CANARY = Extension("tests/sanitize/canary.pyx")


def main(arguments: Sequence[str]) -> int:
    """Build, show that errors are found, run the tests, and return the exit status."""
    start = time.monotonic()
    build = make_build([*extensions_of(ROOT), CANARY])
    try:
        built = time.monotonic()
        check_canaries(build)
        deselected = [f"--deselect={test}" for test in UNFIT] + [f"--ignore={path}" for path in LEFT_OUT]
        suites = () if any(not argument.startswith("-") for argument in arguments) else SUITES
        status = build.run("-m", "pytest", "-p", "no:cacheprovider", *deselected, *arguments, *suites).returncode
        for report in build.reports():
            print(report)
            status = status or STATUS
        took = time.monotonic() - built
        print(
            f"sanitize: {'nothing found' if status == 0 else 'FAILED'}; built in {built - start:.0f} s, tested in {took:.0f} s", flush=True
        )
        return status
    finally:
        build.remove()


def check_canaries(build: Build) -> None:
    """Run each deliberate error, and forget what was found.

    Raises:
        RuntimeError: one was not found: the build checks nothing.
    """
    for call, complaint in CANARIES.items():
        done = build.run("-c", f"from tests.sanitize import canary; canary.{call}", is_captured=True, timeout_seconds=60)
        said = done.stderr + "".join(build.reports())
        if done.returncode != STATUS or complaint not in said:
            raise RuntimeError(f"the sanitizers did not find {call}: status {done.returncode}; {said}")
        build.forget_reports()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
