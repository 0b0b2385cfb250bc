"""The adapters of the link to a network: NATS, or TLS between the hosts themselves. Both implement `sbus_services.link.ports.Network`."""
