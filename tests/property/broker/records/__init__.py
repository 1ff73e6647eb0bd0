"""Laws of `broker/records`."""
