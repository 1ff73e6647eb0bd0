"""Timers: the hierarchical timing wheel, its tasks, and who brings them forward."""
