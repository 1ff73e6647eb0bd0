"""Laws of `purgatory/timer`."""
