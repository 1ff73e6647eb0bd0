"""Laws of `broker/groups`."""
