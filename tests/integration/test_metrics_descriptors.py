"""Descriptors that users send to sbus-metrics, which never expects any: the last close of one can block as long as its sender likes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon
from tests.support.kernels import old_kernel, refuses_descriptors
from tests.support.lingering import pass_on_lingering, stopped
from tests.support.metrics_endpoint import Endpoint
from tests.support.users import SECOND

pytestmark = pytest.mark.usefixtures("needs_root")


@pytest.fixture(params=[False, True], ids=["this kernel", "Linux 6.12"])
def endpoint(request: pytest.FixtureRequest, bus: Daemon, folder: Path) -> Iterator[Endpoint]:
    """The program, on this kernel or one that cannot refuse descriptors."""
    with Endpoint(folder, bus.path, env=old_kernel(folder) if request.param else {}) as made:
        yield made


@pytest.mark.parametrize("count", [1, 2], ids=["received", "unread in a refused connection"])
def test_a_descriptor_delays_no_scrape(endpoint: Endpoint, request: pytest.FixtureRequest, count: int) -> None:
    """A user that may not scrape has one connection; further ones are closed unread."""
    assert endpoint.process is not None
    refused = 0
    with contextlib.ExitStack() as opened:
        with stopped(endpoint.process.pid):
            for _ in range(count):
                sock = opened.enter_context(SECOND.connect(endpoint.path, socket.SOCK_STREAM))
                try:
                    opened.enter_context(pass_on_lingering(sock, b"GET / HTTP/1.1\r\n"))
                except PermissionError:
                    refused += 1
        assert endpoint.scrape()[("sbus_up",)] == 1
        is_old = "Linux 6.12" in request.node.name
        assert refused == (0 if is_old or not refuses_descriptors() else count)
    assert endpoint.scrape()[("sbus_up",)] == 1
