"""ZeroMQ's proxy at ``PATH.in`` for publishers and ``PATH.out`` for subscribers, until it is killed."""

from __future__ import annotations

import os
import sys

import zmq


def main(path: str) -> None:
    """Run the proxy; standard output is closed when it is ready."""
    context = zmq.Context()
    inside, outside = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    for each in (inside, outside):
        # Unbounded queues: bounded ones drop, and say nothing.
        each.set(zmq.SNDHWM, 0)
        each.set(zmq.RCVHWM, 0)
    inside.bind(f"ipc://{path}.in")
    outside.bind(f"ipc://{path}.out")
    os.close(1)
    zmq.proxy(inside, outside)


if __name__ == "__main__":
    main(sys.argv[1])
