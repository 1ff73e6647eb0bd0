"""The tables of a pipeline on disk, in Parquet or Delta."""
