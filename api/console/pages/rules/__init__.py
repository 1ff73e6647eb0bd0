"""Screens of what people write: policies and schedules."""
