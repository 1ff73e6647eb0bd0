"""Faults to be done to a running deployment: by the fast tests some of them, by the soak all of them at random."""
