"""Shows the newest value of each sensor, also those from before its start: python3 examples/last_values.py (stream with last = 1)."""

import time

from sbus import Bus

values = {}
with Bus.connect(reconnect=True) as bus, bus.subscribe("sensor/", last=True, on_gap=print) as sensors:
    for message in sensors:
        values[message.key] = message.payload.decode(errors="replace")
        if not sensors.pending:
            print(values, flush=True)
            time.sleep(1)
