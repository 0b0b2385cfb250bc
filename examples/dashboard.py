"""A dashboard that shows the newest value of each sensor: python3 examples/dashboard.py [SECONDS]

Publish values with: sbusctl pub sensor/kitchen 21.5

With the order "latest", the bus keeps only the newest queued message of each key. So a dashboard that draws slowly, here once in
SECONDS (default 1), shows current values, however fast the sensors are.
"""

import sys
import time

from sbusd.client import Bus, Gap, Message, Replaced

PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0

values: dict[str, str] = {}
replaced = 0

with Bus.connect() as bus:
    bus.tell("order/latest")
    with bus.subscribe("sensor/") as sensors:
        for items in sensors.batches():
            for item in items:
                match item:
                    case Message():
                        values[item.key.decode()] = item.payload.decode()
                    case Replaced():
                        replaced += item.count
                    case Gap():
                        print(f"{item.lost} messages were lost")
            print(*(f"{key}={value}" for key, value in sorted(values.items())), f"({replaced} older values skipped)", flush=True)
            time.sleep(PAUSE)
