"""Screens, a module for each: they ask the API, and show a template."""
