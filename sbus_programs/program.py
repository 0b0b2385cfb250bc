"""A program from its command line to its exit status: it checks its configuration, or serves with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sbus.protocol.errors import SbusError
from sbus_programs.config.files import ConfigError
from sbus_programs.exhaustion import exhausted
from sbus_programs.standard_error import fail
from sbus_programs.standard_output import print_line
from sbus_programs.systemd.service_user import acting_as_user_of, valid
from sbus_programs.systemd.signals import exit_on_ending_signals

_Loaded = TypeVar("_Loaded")

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def run_configured(
    program: str,
    main_file: Path,
    load: Callable[[], _Loaded],
    serve: Callable[[_Loaded], object],
    *,
    is_check: bool,
    permanent: tuple[type[Exception], ...] = (),
    check: Callable[[_Loaded], object] = lambda _loaded: None,
) -> None:
    """Call *serve* with what *load* reads from *main_file*; or, if *is_check*, pass that to *check*, as the user of the service, and print
    that the configuration is valid. Exits as :func:`failing_with_status` does."""
    with failing_with_status(program, *permanent):
        if is_check:
            check_configuration(program, main_file, lambda: check(load()))
        else:
            exit_on_ending_signals()
            serve(load())


def check_configuration(program: str, main_file: Path, check: Callable[[], object], *, unit: str = "") -> None:
    """Call *check*, which reads *main_file*, as the user of the service *unit*, by default that of *program*, and print that the
    configuration is valid.

    Raises what *check* raises.
    """
    with acting_as_user_of(unit or f"{program}.service", main_file) as reader:
        check()
    print_line(program, valid(reader))


@contextmanager
def failing_with_status(program: str, *permanent: type[Exception], doing: str = "") -> Iterator[None]:
    """Print an SbusError or OSError of the block, and exit: with status 78 for a ConfigError or one of *permanent*, which a restart cannot
    repair, and else 1. *doing* says what failed if an OSError names no file."""
    try:
        yield
    except SbusError as wrong:
        fail(program, str(wrong), os.EX_CONFIG if isinstance(wrong, (ConfigError, *permanent)) else 1)
    except OSError as wrong:
        reason = exhausted(wrong) or wrong.strerror or str(wrong)
        advice = "; free some space or inodes: see df -h and df -i" * (wrong.errno in _NO_ROOM)
        fail(program, ": ".join(filter(None, (str(wrong.filename or doing), reason))) + advice)
