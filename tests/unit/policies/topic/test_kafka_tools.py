"""Commands of Kafka's tools as they are printed: whoever pastes one reaches the brokers that tickover reaches."""

from collections.abc import Mapping

import pytest

from policies.topic.kafka_tools import KafkaTools, tools_of

BROKERS = {"bootstrap.servers": "a:9092,b:9092"}
PLAIN_TOPICS = "kafka-topics.sh --bootstrap-server a:9092,b:9092 --list"
LOGIN_TOPICS = "kafka-topics.sh --bootstrap-server a:9092,b:9092 --command-config admin.properties --list"
MODULES = "org.apache.kafka.common.security"


@pytest.mark.parametrize("client", [{}, {"security.protocol": "plaintext"}, {"sasl.username": "me"}])
def test_without_a_login_a_command_has_the_address_alone(client: dict[str, str]) -> None:
    tools = tools_of(BROKERS | client)
    assert tools.command("kafka-topics.sh", "--list") == PLAIN_TOPICS
    assert tools.note == ""


@pytest.mark.parametrize(
    ("client", "lines"),
    [
        ({"security.protocol": "ssl"}, ["security.protocol=SSL"]),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/c.pem"},
            [
                "security.protocol=SSL",
                "ssl.truststore.type=PEM",
                "ssl.truststore.location=/ca.pem",
                "ssl.keystore.type=PEM",
                "ssl.keystore.location=FILE_WITH_KEY_AND_CERTIFICATE",
            ],
        ),
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", "ssl.ca.location": "/ca.pem"},
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=SCRAM-SHA-512",
                f'sasl.jaas.config={MODULES}.scram.ScramLoginModule required username="ADMIN" password="PASSWORD";',
                "ssl.truststore.type=PEM",
                "ssl.truststore.location=/ca.pem",
            ],
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"},
            [
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=PLAIN",
                f'sasl.jaas.config={MODULES}.plain.PlainLoginModule required username="ADMIN" password="PASSWORD";',
            ],
        ),
        # A mechanism of a plug-in: its module isn't known here.
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"},
            ["security.protocol=SASL_SSL", "sasl.mechanism=AWS_MSK_IAM"],
        ),
    ],
)
def test_with_a_login_a_command_names_a_file_and_says_what_is_in_it(
    client: Mapping[str, str], lines: list[str]
) -> None:
    tools = tools_of({**BROKERS, **client, "sasl.username": "us", "sasl.password": "hunter2"})
    assert tools.command("kafka-topics.sh", "--list") == LOGIN_TOPICS
    assert tools.note.splitlines() == ["", "admin.properties has the login of somebody who may do this:", *lines]
    assert "hunter2" not in tools.note


def test_an_address_is_one_word_of_the_shell() -> None:
    assert KafkaTools("$(id)").options == "--bootstrap-server '$(id)'"
