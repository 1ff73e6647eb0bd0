"""Questions about topics that were sources once."""

from sidecar.model.stats import Left
from sidecar.service.sources import FORMER_LOOKS, LEFT_LOOKS
from tests.unit.policy_world import DELAY, RETRY, table
from tests.unit.service.test_sources import Cluster, sources


def test_it_is_seldom_asked_of_which_topics_the_group_has_commits() -> None:
    """librdkafka may end the process where a broker goes away at that moment (its issue 4605)."""
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
