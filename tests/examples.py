"""How many examples a law is tried on, where the usual number is too few or too many."""

from hypothesis import settings

USUAL = 100  # of hypothesis


def examples(count: int) -> int:
    """`count` where the profile has hypothesis' own number; as many times fewer as a profile has fewer."""
    profile = settings.default
    assert profile is not None
    return max(1, count * profile.max_examples // USUAL)
