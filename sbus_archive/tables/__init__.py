"""The tables of the pipeline on disk: columns, hours, and their storage in Delta tables. Spec: sbus-pipeline(8).

The pipeline writes them, ``sbusctl report`` reads them. Nothing here needs Spark.
"""
