"""The process: assembled, started, watched, stopped."""
