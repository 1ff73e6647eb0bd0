"""Laws of `broker/protocol`."""
