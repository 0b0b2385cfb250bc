"""How each table is computed from the record: one module a table, plain Spark, no state from hour to hour.

Each has a ``compute`` that takes rows of the record with ``date``, ``hour`` and ``host``, of any number of hours, and returns the
table's columns behind ``date`` and ``hour``. The rows of an hour never depend on which other hours are computed with it.
"""
