"""Recurring messages: schedules, which of their occurrences are owed, and writing those as delayed records."""
