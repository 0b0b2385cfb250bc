"""Shows the newest value of each sensor, at most once a second: python3 examples/dashboard.py (start sensor.py before or after it)."""

import time

from sbus import Bus

with Bus.connect(reconnect=True, background=True) as bus, bus.subscribe("sensor/", on_gap=print) as sensors:
    bus.tell("order/latest")  # if this program does not keep up, the bus keeps the newest message of each key
    values = dict(each.answer.decode(errors="replace").partition("=")[::2] for each in bus.call_all("sensor/value") if each.answer)
    print(values, flush=True)
    for message in sensors:
        values[message.key] = message.payload.decode(errors="replace")
        if not sensors.pending:
            print(values, flush=True)
            time.sleep(1)
