"""Trace contexts in C, with ``clients/c/sbus.h``, and in Python on a real bus."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbus import Bus, Request
from tests.support.c_programs import Actor, client_program
from tests.support.daemons import Daemon
from tests.support.service_processes import running_service

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WAIT_SECONDS = 30.0


SHARES_BUS = True


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


@pytest.fixture
def service(program: Path, bus: Daemon) -> Iterator[Actor]:
    """A service of the command ``traced``, whose test reads the requests."""
    actor = Actor(program, bus.path)
    actor.ok("serve-one", "traced")
    actor.barrier()
    actor.barrier()
    yield actor
    actor.close()


def _context(request: Request) -> str:
    return request.context or "none"


@pytest.mark.parametrize("context", ["", CONTEXT, CONTEXT.replace("00-", "cc-", 1) + "-x" * 100])
def test_a_python_service_gets_the_context_of_a_c_caller(bus: Daemon, program: Path, context: str) -> None:
    caller = Actor(program, bus.path)
    with running_service(bus.path, context=_context) as python:
        expected = (context or "none").encode().hex()
        assert caller.do("call-traced", "context", context, "30000") == f"reply\t{python.pid}\t{expected}"
    caller.close()


def test_a_nested_call_has_the_context_that_the_program_passes_on(bus: Daemon, service: Actor, program: Path) -> None:
    nested = Actor(program, bus.path)
    with running_service(bus.path, context=_context) as python, Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:
        for context in (CONTEXT, ""):
            waiting = threads.submit(caller.call, "traced", "x", timeout=WAIT_SECONDS, context=context)
            assert service.do("read", "traced", "0").split("\t") == ["request", context, b"x".hex()]
            assert nested.do("call-traced", "context", context, "30000") == f"reply\t{python.pid}\t{(context or 'none').encode().hex()}"
            service.ok("respond", "0", "done")
            assert waiting.result(WAIT_SECONDS) == b"done"
    nested.close()


@pytest.mark.parametrize(
    "context", ["x", CONTEXT.upper(), CONTEXT + "-x", "ff" + CONTEXT[2:], CONTEXT[:-1], "cc" + CONTEXT[2:] + "-" * 202]
)
def test_a_caller_cannot_send_what_is_not_a_context(bus: Daemon, program: Path, context: str) -> None:
    caller = Actor(program, bus.path)
    assert caller.do("call-traced", "context", context, "30000").startswith(
        f"error\t{errno.EINVAL}\t{bus.path}: call failed: the context is not a W3C traceparent: {context[:64]}"
    )
    caller.close()


def test_a_service_ignores_contexts_of_hostile_callers(bus: Daemon, service: Actor) -> None:
    """And runs the requests."""
    hostile = bus.client()
    wrong: list[object] = [None, 7, {"a": [CONTEXT]}, "", CONTEXT.upper(), CONTEXT + "\0", CONTEXT + "\ud83d\ude00", "0" * 190_000]
    for number, value in enumerate([*wrong, CONTEXT]):
        hostile.publish(b"rpc/traced", json.dumps({"ver": 1, "uid": f"u{number}", "cmd": "traced", "ctx": value}).encode())
        assert service.do("read", "traced", "0").split("\t") == ["request", CONTEXT if value == CONTEXT else "", ""]
