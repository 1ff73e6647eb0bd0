"""Tests, on Spark, of `pipeline/sending`."""
