"""The archive: the record of the traffic, the tables computed from it with Spark, and the report."""
