"""Errors of Kafka's client in words for who doesn't know it."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.kafka.committed_offsets import KafkaStarts
from sidecar.kafka.errors import AWAY, words_of
from sidecar.ledger.topic import LedgerUnavailable


@pytest.mark.parametrize("code", sorted(AWAY))
def test_whatever_passes_has_plain_words(code: int) -> None:
    words = words_of(KafkaError(code, "10.0.0.7:9092/bootstrap: Local: rd_kafka failed in 3ms"))
    assert words[:1].islower()
    assert not {"Local:", "Broker:", "rd_kafka"} & set(words.split())


def test_what_has_none_keeps_those_of_the_client_without_their_origin() -> None:
    assert words_of(KafkaError(KafkaError._DESTROY)) == "Broker handle destroyed for termination"
    assert words_of(KafkaError(KafkaError.POLICY_VIOLATION)) == "Policy violation"


def test_a_problem_that_readyz_shows_has_them() -> None:
    starts = KafkaStarts({"bootstrap.servers": "127.0.0.1:1"}, "g", start_latest=False)

    def at(_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "127.0.0.1:1/bootstrap: Connect refused"))

    starts._records.at = at  # type: ignore[assignment]
    with pytest.raises(LedgerUnavailable, match=r"^no answer about what logs have: the connection to a broker broke$"):
        starts.records({})
