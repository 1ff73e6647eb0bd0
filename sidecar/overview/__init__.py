"""Figures of a whole group: what each replica tells of itself, the last hour by minute, and what is wrong in words."""
