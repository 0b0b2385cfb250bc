"""The Data Source ``sbus`` for Spark: an archive and the live bus as DataFrames, and DataFrames onto the bus. Spec: sbus-spark(7)."""
