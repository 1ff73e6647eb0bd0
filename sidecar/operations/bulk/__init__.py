"""Changes of many held messages at once: cancel, reschedule or fire all that a filter matches. Beside the engine."""
