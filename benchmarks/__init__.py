"""Benchmarks: each prints its command, machine, a baseline measured in the same run, a table and its caveats."""
