"""Prints each unit of systemd that fails, and each that works again: python3 examples/failed_units.py

It needs the feed of units: systemctl start sbus-feed@systemd.service
"""

from sbus import Bus

with Bus.connect() as bus, bus.subscribe("systemd/unit/", "systemd/snapshot/end") as messages:
    bus.publish("systemd/request")  # the answer is a snapshot: all units that are loaded now
    failed: set[str] = set()
    for message in messages:
        unit = message.json()
        if message.key == "systemd/snapshot/end":
            print(f"watching {unit['entries']} units and jobs", flush=True)
            continue
        is_failed = unit["active"] == "failed" and unit["event"] != "remove"
        if is_failed and unit["unit"] not in failed:
            print(f"{unit['unit']} has failed: {unit['result']}", flush=True)
            failed.add(unit["unit"])
        elif not is_failed and unit["unit"] in failed:
            print(f"{unit['unit']} is {unit['active']}", flush=True)
            failed.discard(unit["unit"])
