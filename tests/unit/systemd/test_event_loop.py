"""A service ends in full, whatever number of signals it gets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from sbusd.systemd.event_loop import first_defect, on_ending_signal, run_service
from sbusd.systemd.signals import ENDING


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers of this process, which ignores the signals after the end of a service."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send_both() -> None:
    """Send all ending signals to this process."""
    for number in ENDING:
        os.kill(os.getpid(), number)


def test_signals_stop_it_once_and_do_not_interrupt_its_end() -> None:
    stops, ended = 0, False

    async def service() -> None:
        nonlocal ended
        task = asyncio.ensure_future(asyncio.Event().wait())

        def stop() -> None:
            nonlocal stops
            stops += 1
            task.cancel()

        on_ending_signal(stop)
        send_both()
        try:
            await task
        except asyncio.CancelledError:
            for _ in range(10):
                send_both()
                await asyncio.sleep(0)
            ended = True

    run_service(service())
    send_both()
    assert (stops, ended) == (1, True)


def test_signals_have_no_effect_after_a_service_that_ended_by_itself() -> None:
    async def service() -> None:
        on_ending_signal(lambda: None)

    run_service(service())
    send_both()


def test_the_first_defect_ends_what_waits_for_it() -> None:
    def fail(number: int) -> None:
        raise ValueError(number)

    async def service() -> None:
        failed = first_defect()
        for number in range(2):
            asyncio.get_running_loop().call_soon(fail, number)
        with pytest.raises(ValueError, match=r"^0$"):
            await failed
        await asyncio.sleep(0)

    asyncio.run(service())
