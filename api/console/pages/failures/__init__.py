"""Screens of what failed: groups, dead letters, redrives, the quarantine."""
