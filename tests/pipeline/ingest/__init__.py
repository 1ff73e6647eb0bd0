"""Tests, on Spark, of `pipeline/ingest`."""
