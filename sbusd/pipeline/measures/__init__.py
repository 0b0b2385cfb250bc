"""Computes the tables with Spark, from the partial rows of :mod:`sbusd.pipeline.partials`. Nothing is kept from hour to hour.

Each function takes partial rows of any number of hours, and returns ``date``, ``hour`` and the columns of the table. The rows of an hour
do not depend on the other hours.
"""
