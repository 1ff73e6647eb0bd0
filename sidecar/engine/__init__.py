"""The engine: one thread owns its state; it knows no client library, no clock and no chance."""
