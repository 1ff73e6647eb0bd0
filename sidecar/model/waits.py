"""Waits by the engine's time, which may be set back (`clock.py`): none lasts longer for that than twice as long."""


def is_over(now_ms: int, until_ms: int, longest_ms: int) -> bool:
    """Whether a wait of at most `longest_ms` is over. The clock was set back by more than that: it is, too."""
    return not 0 < until_ms - now_ms <= 2 * longest_ms
