"""Where the demo takes place, and what it deletes when it ends."""

from pathlib import Path

from sidecar.demo.setup import demo_settings, demo_topics
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
