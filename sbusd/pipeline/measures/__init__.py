"""Computes the tables from the record with Spark. Nothing is kept from hour to hour.

Each function takes rows of the record with ``date``, ``hour`` and ``host``, of any number of hours, and returns ``date``, ``hour`` and the
columns of the table. The rows of an hour do not depend on the other hours.
"""
