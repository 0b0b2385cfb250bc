"""sbus-link: publish and subscribe between hosts. The protocol is here without I/O; the adapters of network and bus call it."""
