"""The udev feed as a service, with its sandbox, and with a udevd of the machine's own that is restarted."""

from __future__ import annotations

from pathlib import Path

from tests.support.container import Container

FEED = "sbus-feed@udev.service"
UDEVD = "/usr/lib/systemd/systemd-udevd"
DEVICE = Path("/sys/devices/virtual/mem/null/uevent")
RECEIVED = "/home/alice/received"


def cause_event(machine: Container, number: int) -> None:
    """Cause events of the kernel, which udevd in the container receives too, until alice has received *number* of them."""
    count = f"$(grep --count ^udev/mem/change/null {RECEIVED})"
    for _ in range(60):
        DEVICE.write_text("change")
        if machine.run(f"for n in 1 2 3 4 5; do test {count} -ge {number} && exit 0; sleep 0.2; done; exit 1", check=False).status == 0:
            return
    raise AssertionError(machine.output(f"cat {RECEIVED}; journalctl --no-pager --lines=60"))


def test_devices_and_events_of_a_machine(machine: Container) -> None:
    machine.run(f"systemd-run --quiet --unit=own-udevd.service {UDEVD}")
    machine.run(f"systemd-run --quiet --collect --uid=alice --unit=listener.service sh -c 'exec sbusctl sub udev/ >{RECEIVED}'")
    try:
        machine.wait_for("test $(sbusctl stats --json=short | grep -o '\"subscriptions\":[0-9]*' | cut -d: -f2) -gt 0")
        machine.run(f"systemctl start {FEED}")
        pid = machine.output(f"systemctl show --property=MainPID --value {FEED}")
        assert machine.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-feed", "CapEff:", "0" * 16]
        machine.wait_for(f"grep --quiet ^udev/snapshot/end {RECEIVED}")
        assert "DEVNAME" in machine.output(f"grep ^udev/mem/device/null {RECEIVED}")
        cause_event(machine, 1)
        # udevd that starts again needs nothing of the feed, and an event follows as before.
        machine.run("systemctl restart own-udevd.service")
        received = int(machine.output(f"grep --count ^udev/mem/change/null {RECEIVED}"))
        cause_event(machine, received + 1)
        assert machine.output(f"grep ^udev/snapshot/begin {RECEIVED}").count('"reason":"start"') == 1
        # Any user may ask for a snapshot, and a restart of the bus brings another.
        machine.run("sbusctl pub udev/request", user="bob")
        machine.wait_for(f"grep '^udev/snapshot/end' {RECEIVED} | grep --quiet '\"reason\":\"request\"'")
        assert machine.output(f"systemctl show --property=NRestarts --value {FEED}") == "0"
        assert "overrun" not in machine.journal(f"--unit={FEED}")
    finally:
        machine.run(f"systemctl stop {FEED} listener.service own-udevd.service", check=False)
