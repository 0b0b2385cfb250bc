"""Shows which clients connect, subscribe and disconnect: python3 examples/presence.py

Every client sees connects and disconnects. It sees the subscriptions of its own user; owners of the bus, and users who have the
"presence" right of sbusd.toml(5), see those of all users.
"""

from sbus import Bus, PresenceEvent

with Bus.connect() as bus, bus.presence() as events:
    print("watching", flush=True)
    for event in events:
        if isinstance(event, PresenceEvent):
            pattern = (event.pattern or "").encode(errors="replace").decode()  # it may have bytes that are not UTF-8
            print(f"{event.change.value} uid={event.peer.uid} pid={event.peer.pid} {pattern}".rstrip(), flush=True)
        else:
            print(f"events are missing: {event}", flush=True)
