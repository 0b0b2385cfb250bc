"""What another host may have under way is charged to it: to no user of this host, and to no third host."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbus import Peer
from sbus.protocol.credentials import UNKNOWN_ID
from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus.rpc.requests import Request
from sbus_programs.config.users import ChargedUsers, SubordinateIds
from sbus_services.store.calls.calls import Calls
from sbus_services.store.calls.remote_calls import RemoteCalls
from sbus_services.store.calls.responses import CallError
from sbus_services.store.context import Allowance, StoreContext


def test_a_host_that_uses_up_its_calls_leaves_others_theirs() -> None:
    async def main() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def figures() -> SimpleNamespace:
            begun.set()
            await goes_on.wait()
            return SimpleNamespace(streams=())

        allowance = Allowance("calls", "calls that run", 1, refusals=Counter(), charged=ChargedUsers(SubordinateIds()))
        routes = SimpleNamespace(settings=SimpleNamespace(streams=()))
        context = cast(StoreContext, SimpleNamespace(is_stopping=False, counts=Counter(), calls=allowance, routes=routes, run=1))
        calls = cast(Calls, SimpleNamespace(admin=SimpleNamespace(figures=figures)))
        services = RemoteCalls(context, calls).dispatcher()._services
        serve = cast(Callable[[Request], Coroutine[Any, Any, bytes]], services["store/streams"].handler)

        def streams(host: int) -> asyncio.Task[bytes]:
            caller = Peer(7, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, b"!/twin/%d/x" % host)
            return asyncio.create_task(serve(Request("store/streams", framed_data({}), caller, "u", None, source=host)))

        first = streams(1)
        await begun.wait()
        with pytest.raises(CallError, match="EDQUOT twin 1 has 1 calls that run"):
            await streams(1)
        other = streams(2)
        with allowance.held(UNKNOWN_ID):  # as a user of this host
            goes_on.set()
            for each in (first, other):
                assert parse_framed_data(await each)[0] == {"streams": [], "queues": [], "run": 1}
        assert context.counts == {"remote_calls": 3, "remote_refusals": 1}

    asyncio.run(asyncio.wait_for(main(), 60))
