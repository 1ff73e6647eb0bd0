"""Operators at work, seed by seed, while processes die; and an oracle that knows what must come of what they start."""
