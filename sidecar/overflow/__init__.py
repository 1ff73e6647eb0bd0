"""Far records in Redis: keys, chunks, scripts, reading ahead."""
