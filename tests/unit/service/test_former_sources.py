"""Questions about topics that were sources once."""

import pytest

from sidecar.model.stats import Left
from sidecar.service.sources import FORMER_LOOKS, LEFT_LOOKS
from tests.unit.policy_world import DELAY, RETRY, table
from tests.unit.service.test_sources import Cluster, sources


def test_it_is_seldom_asked_of_which_topics_the_group_has_commits() -> None:
    """Of all partitions that there are."""
    cluster = Cluster("reminders", "orders-retry")
    looking = sources(cluster, table(DELAY, RETRY))
    cluster.leftovers.has = {"reminders": Left(3, 2), "orders-retry": Left(1, 0)}
    for _ in range(FORMER_LOOKS):
        looking.look()
    assert cluster.leftovers.asked_anew == 1
    looking.look()
    looking.look()
    assert cluster.leftovers.asked_anew == 2
    cluster.policies = table(RETRY)
    looking.look()
    assert cluster.leftovers.asked_anew == 3, "a policy has gone"
    cluster.leftovers.has["reminders"] = Left(0, 0)
    for _ in range(LEFT_LOOKS):
        looking.look()
    assert cluster.subscribed[-1] == ["orders-retry"]
    cluster.leftovers.has["reminders"] = Left(0, 1)
    for _ in range(LEFT_LOOKS):
        looking.look()
    assert cluster.subscribed[-1] == ["orders-retry", "reminders"], "somebody sends on, and nobody reads it"


@pytest.mark.parametrize("glob", ["reminders", "remin*"])
def test_a_source_that_is_not_shown_any_more_is_doubted_until_it_is_shown_or_deleted(glob: str) -> None:
    cluster = Cluster("reminders", "push")
    looking = sources(cluster, table(DELAY), sources=[glob])
    looking.look()
    cluster.hidden = {"reminders"}
    looking.look()
    looking.look()
    assert {topic for topic, _ in cluster.doubted} == {"reminders"}, "as long as it is so"
    assert (len(cluster.doubted), cluster.subscribed[-1]) == (2, [])
    cluster.hidden = set()
    looking.look()
    assert (len(cluster.doubted), cluster.subscribed[-1]) == (2, ["reminders"])
    del cluster.settings["reminders"]
    asked = len(cluster.asked)
    looking.look()
    assert (len(cluster.doubted), cluster.subscribed[-1]) == (2, []), "a deleted topic is no refusal"
    assert ["reminders"] in cluster.asked[asked:]
    cluster.asked.clear()
    looking.look()
    assert len(cluster.doubted) == 2
