"""One module at a time, no service."""
