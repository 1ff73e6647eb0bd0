"""Laws of `broker`."""
