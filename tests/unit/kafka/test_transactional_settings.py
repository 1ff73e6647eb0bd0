"""Settings of the transactional producers."""

from sidecar.kafka.client_settings import LONE_BATCHES, transactional_settings

BOOTSTRAP = {"bootstrap.servers": "kafka:9092"}


def test_records_linger_until_the_engine_pushes() -> None:
    """With less than brokers take to answer, the client's thread would wait in a busy loop."""
    settings = transactional_settings(BOOTSTRAP, "group.0")
    assert settings["linger.ms"] == "1000"
    assert settings["transactional.id"] == "group.0"


def test_the_users_own_value_wins() -> None:
    settings = transactional_settings({**BOOTSTRAP, "linger.ms": "7"}, "group.0")
    assert settings["linger.ms"] == "7"


def test_a_record_alone_in_its_batch_does_not_linger() -> None:
    settings = transactional_settings({**BOOTSTRAP, "linger.ms": "7"}, "group.0", LONE_BATCHES)
    assert settings["linger.ms"] == "0"
    assert settings["batch.num.messages"] == "1"
