"""The tables that the pipeline makes of the record, as they lie on disk: columns, layout, publication, reading. Spec: sbus-pipeline(8).

The pipeline writes them, ``sbusctl report`` reads them. Nothing here needs Spark.
"""
