"""A token bucket: `burst` tokens at most, `rate` new ones a second. Pure: time is an argument.

Over any time what is taken is at most burst + rate * seconds, whenever it is asked.
"""


class TokenBucket:
    """Full at first. Times are epoch milliseconds; one that goes back adds nothing and takes nothing."""

    __slots__ = ("_at_ms", "_burst", "_tokens", "rate")

    def __init__(self, rate: float, burst: float, now_ms: int) -> None:
        self.rate = rate
        self._burst = max(burst, 1.0)  # of less than one token nothing would ever go
        self._tokens = self._burst
        self._at_ms = now_ms

    def resize(self, rate: float, burst: float, now_ms: int) -> None:
        """Another rate from now on. What is left stays, as far as it fits."""
        self.available(now_ms)
        self.rate, self._burst = rate, max(burst, 1.0)
        self._tokens = min(self._tokens, self._burst)

    def available(self, now_ms: int) -> int:
        """How many may be taken."""
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if passed_ms > 0:
            self._tokens = min(self._burst, self._tokens + passed_ms * self.rate / 1_000)
        return int(self._tokens)

    def take(self, count: int) -> None:
        """At most as many as were available."""
        self._tokens -= count
