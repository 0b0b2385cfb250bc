"""The recorder, sbus-recorder(8): receives the traffic of a bus through the tap, and writes it into an archive, sbus-record(5)."""
