"""The queue of requests when it is empty. That users take turns, test_service.py shows."""

from __future__ import annotations

from sbus.rpc.request_queue import RequestQueue


def test_an_empty_queue() -> None:
    queue = RequestQueue()
    assert queue.take() is None
    assert len(queue) == 0
