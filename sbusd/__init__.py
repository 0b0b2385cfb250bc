"""sbusd, the bus: a message bus for one machine. The other houses are clients of it, or what it shares with them: docs/architecture.md."""
