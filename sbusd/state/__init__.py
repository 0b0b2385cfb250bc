"""The durable state of a bus: its records, and the log in memory that outlives the process. Spec: sbusd(8), RESTARTS."""
