"""Laws of events and their ring."""
