"""Faults of what users write (policies, bodies, settings, schedules): all of them at once, each in plain words."""
