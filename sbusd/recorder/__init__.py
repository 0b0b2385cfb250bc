"""The recorder, sbus-recorder(8): listens to a bus through the tap, and writes what it hears into an archive of sbus-record(5)."""
