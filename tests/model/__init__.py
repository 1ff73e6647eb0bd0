"""A model of the settlement for spin: every order of steps, crashes, zombies and losses, of a small case."""
