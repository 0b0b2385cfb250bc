"""Publishes each line of standard input as a value: vmstat -n 1 | python3 examples/sensor.py NAME (see dashboard.py)."""

import sys
import threading

from sbus import Bus

value = ""
with Bus.connect(reconnect=True) as bus:
    bus.service("sensor/value")(lambda _request: f"sensor/{sys.argv[1]}={value}")  # for dashboards that start later
    threading.Thread(target=bus.serve, daemon=True).start()
    for line in sys.stdin:
        value = line.strip()
        bus.publish(f"sensor/{sys.argv[1]}", value)
