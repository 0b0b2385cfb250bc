"""The C programs of ``make bench-peers``: the load, and the controller of dbus-broker."""

from __future__ import annotations

from pathlib import Path

from tests.bench.programs import SOURCE, compile_program

HERE = Path(__file__).resolve().parent

_LOAD = ("load.c", "pump.c", "trip.c", "churn.c", "wire.c", "stream.c", "sbus.c", "dbus.c", "redis.c", "nats.c", "mqtt.c")
_FROM_BENCH = ("bus.c", "window.c", "times.c")


def compile_load() -> Path:
    """Compile the load, if it is not newer than its sources. Raises BenchError if that fails."""
    return compile_program("peers-load", [*(HERE / "load" / name for name in _LOAD), *(SOURCE / name for name in _FROM_BENCH)])


def compile_controller() -> Path:
    """Compile dbus-broker's controller, which needs libsystemd as the daemon does. Raises BenchError if that fails."""
    return compile_program("peers-broker", [HERE / "broker" / "controller.c", SOURCE / "bus.c"], ["-lsystemd"])
