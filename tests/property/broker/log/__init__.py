"""Laws of `broker/log`."""
