"""Where the demo takes place, and what it deletes when it ends."""

from pathlib import Path

from sidecar.demo.setup import LOOK_AHEAD_MS, demo_settings, demo_topics
from sidecar.settings.settings import Settings


def test_no_topic_of_the_users_is_the_demos() -> None:
    """Topics of the demo are deleted at its end."""
    sections = ("ledger", "audit", "redrive", "changes", "schedules", "pauses", "policies", "quarantine")
    named = {name: {"topic": f"company-{name}"} for name in sections}
    named["redrive"]["redriven_topic"] = "company-redriven"
    given = Settings.model_validate(named)
    topics = demo_topics("demo-1.")
    mine = demo_settings(given, "demo-1", topics, "k:9092", Path("/tmp/demo")).own_topics | set(topics.all)
    assert given.own_topics == {topic for section in named.values() for topic in section.values()}
    assert not mine & given.own_topics
    assert all("demo-1" in name for name in mine)


def test_little_is_held_of_a_schedule_that_has_ended_unless_the_user_says_otherwise() -> None:
    def look_ahead_ms(**given: object) -> int:
        settings = Settings.model_validate({"schedules": given})
        return demo_settings(settings, "g", demo_topics(""), "k:9092", Path("/tmp/demo")).schedules.look_ahead_ms

    assert look_ahead_ms() == LOOK_AHEAD_MS
    assert look_ahead_ms(look_ahead="7s") == 7_000
