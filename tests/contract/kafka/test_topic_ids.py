"""Kafka's ids of topics, as jobs ask for them: on the reference broker and on real Kafka."""

import pytest

from sidecar.kafka import topics as kafka_topics
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.kafka.topics import TopicIds
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.waiting import wait_until

pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:1"


def test_a_topic_that_is_made_anew_has_another_id(cluster: Kafka) -> None:
    ids = TopicIds({"bootstrap.servers": cluster.bootstrap})
    one, other = cluster.topic("one"), cluster.topic("other")
    before = ids.of([one, other, "nowhere"])
    assert before.keys() == {one, other}
    assert len({*before.values(), ""}) == 3
    assert ids.of_one(one) == before[one]
    [deleted] = cluster.admin.delete_topics([one]).values()
    deleted.result(ANSWER_TIMEOUT_S)
    wait_until(lambda: one not in ids.of([one, other]), ANSWER_TIMEOUT_S, lambda: "it is still there")
    with pytest.raises(LogUnavailable):
        ids.of_one(one)
    cluster.create_topic(one)
    after = ids.of([one, other])
    assert after[one] != before[one]
    assert after[other] == before[other]


def test_no_answer_is_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topics, "ID_ANSWER_S", 0.5)
    with pytest.raises(LogUnavailable):
        TopicIds({"bootstrap.servers": NOBODY, "log_level": "0"}).of(["t"])
    assert TopicIds({"bootstrap.servers": NOBODY}).of([]) == {}, "nobody is asked about nothing"
