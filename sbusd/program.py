"""Checks the configuration of a service, and ends its program if it must change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbusd.config.files import ConfigError
from sbusd.protocol.errors import SbusError
from sbusd.standard_error import fail
from sbusd.standard_output import print_line
from sbusd.systemd.service_user import acting_as_user_of, valid


def check_configuration(program: str, main_file: Path, check: Callable[[], object]) -> None:
    """Call *check*, which reads *main_file*, as the user of the service *program*, and print that the configuration is valid.

    Raises what *check* raises.
    """
    with acting_as_user_of(f"{program}.service", main_file) as reader:
        check()
    print_line(program, valid(reader))


@contextmanager
def failing_with_status(program: str, *permanent: type[Exception]) -> Iterator[None]:
    """Print an SbusError of the block, and exit: with status 78 for a ConfigError or one of *permanent*, which a restart cannot repair,
    and else 1."""
    try:
        yield
    except SbusError as wrong:
        fail(program, str(wrong), os.EX_CONFIG if isinstance(wrong, (ConfigError, *permanent)) else 1)
