"""The pipeline: computes tables from the record with Spark. Spec: sbus-pipeline(8)."""
