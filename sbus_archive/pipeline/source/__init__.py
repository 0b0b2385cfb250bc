"""The Data Source ``sbus`` for Spark: reads an archive or the live bus, and publishes rows. Spec: sbus-spark(7)."""
