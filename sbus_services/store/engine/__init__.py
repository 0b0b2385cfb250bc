"""The engine of sbus-store: messages, readers and queues in one SQLite file, without the bus."""
