"""Kafka's Heartbeat: when a member must be heard of next. Times are in seconds, of the event loop; pure."""

from broker.clients.consumer.consumer_records import ConsumerSettings


class Heartbeat:
    """Three clocks: the next heartbeat, the end of the session, and the end of the user's time until the next poll."""

    def __init__(self, settings: ConsumerSettings, now_s: float) -> None:
        self._settings = settings
        self.next_s = now_s
        self.session_ends_s = now_s
        self.poll_due_s = now_s
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """A generation begins, or ends."""
        self.next_s = now_s + self._settings.heartbeat_interval_ms / 1000
        self.session_ends_s = now_s + self._settings.session_timeout_ms / 1000
        self.polled(now_s)

    def polled(self, now_s: float) -> None:
        """The user takes part."""
        self.poll_due_s = now_s + self._settings.max_poll_interval_ms / 1000

    def sent(self, now_s: float) -> None:
        """One is on its way."""
        self.next_s = now_s + self._settings.heartbeat_interval_ms / 1000

    def received(self, now_s: float) -> None:
        """The coordinator has answered."""
        self.session_ends_s = now_s + self._settings.session_timeout_ms / 1000

    def failed(self, now_s: float) -> None:
        """Another one soon; an ended session begins anew, with a coordinator that is looked for."""
        self.next_s = now_s + self._settings.retry_backoff_s
        if now_s >= self.session_ends_s:
            self.received(now_s)

    def answer_in_s(self, now_s: float) -> float:
        """How long an answer may take: no longer than the session lasts."""
        left_s = max(self.session_ends_s - now_s, self._settings.retry_backoff_s)
        return min(left_s, self._settings.request_timeout_ms / 1000)

    def is_poll_overdue(self, now_s: float) -> bool:
        """Whether the user has been away for longer than `max_poll_interval_ms`."""
        return now_s >= self.poll_due_s

    def wait_s(self, now_s: float) -> float:
        """Until there is something to do."""
        return max(0.0, min(self.next_s, self.poll_due_s) - now_s)
