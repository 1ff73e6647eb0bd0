"""Tests, on Spark, of `pipeline/warehouse`."""
