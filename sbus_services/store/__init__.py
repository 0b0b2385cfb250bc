"""Messages on disk: streams, last values, durable readers and queues, in one SQLite file. Spec: sbus-store(8)."""
