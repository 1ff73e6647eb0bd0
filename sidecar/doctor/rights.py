"""Rights that tickover needs and this principal has not: Kafka tells everybody what they themselves may do.

Kafka tells nothing about transactional ids, and nothing about topics that are yet to come under a prefix.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, NewTopic

from policies.kafka_clients import AdminClient
from sidecar.doctor.acl import EVERY, Operation, Right, kafka_commands
from sidecar.doctor.facts import Finding, Severity
from sidecar.settings.settings import Settings

ASK_TIMEOUT_S: Final = 2.0
PART: Final = "rights"
# DescribeConfigs is not here: it shows where the settings of a topic are read.
_OPERATIONS: Final[Mapping[Operation, AclOperation]] = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
}
_NO_RIGHT: Final = re.compile(r"authorization[ _]failed|\bno right to\b", re.IGNORECASE)
_REFUSED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})

# What may be done by name of topic or group: nothing where it is empty, None where nobody tells.
Allowed = Mapping[str, frozenset[AclOperation] | None]


def lacking(admin: AdminClient, rights: Sequence[Right], topics: Sequence[str]) -> tuple[list[Right], frozenset[str]]:
    """Rights with the operations that are missing, and the topics that can't even be seen, be they there or not.

    `topics` are those that can be seen. A prefix is judged by those under it, else by a topic of its own name.
    """
    examples = {right: _examples(right, topics) for right in rights}
    of_topics = _topics(admin, _named("topic", examples))
    may = {"topic": of_topics, "group": _groups(admin, _named("group", examples))}
    absent = [
        right.pattern.name for right in rights if "Create" in right.operations and right.pattern.name not in topics
    ]
    forbidden = _uncreatable(admin, absent)
    found = []
    for right, names in examples.items():
        allowed = [may[right.resource].get(name) for name in names] if right.resource in may else []
        lacks = tuple(
            operation
            for operation in right.operations
            if (right.pattern.name in forbidden if operation == "Create" else _is_lacking(operation, allowed))
        )
        if lacks:
            found.append(right._replace(operations=lacks))
    return found, frozenset(name for name, operations in of_topics.items() if operations == frozenset())


def findings(lacks: Sequence[Right], settings: Settings) -> Iterator[Finding]:
    """One for each thing for which rights are missing, with the command that gives them."""
    principal = principal_of(settings)
    for right in lacks:
        [fix] = kafka_commands([right], principal, settings.kafka.tools)
        kind = "" if right.pattern.kind == "literal" else "s that begin with"
        what = f"no {', '.join(right.operations)} on {right.resource}{kind} {right.pattern.name} ({right.role})"
        yield Finding(Severity.ERROR, PART, what, fix)
    if not lacks:
        yield Finding(Severity.OK, PART, "none is missing on topics and groups; transactional ids can't be asked about")


def is_about_rights(error: BaseException | None) -> bool:
    """Whether an error, or what it comes of, says that a right is missing: in Kafka's words or in ours."""
    while error is not None:
        if _NO_RIGHT.search(str(error)):
            return True
        error = error.__cause__
    return False


def principal_of(settings: Settings) -> str:
    """As whom the brokers know us, where the settings tell; else a word to be replaced."""
    client = settings.kafka.client_properties()
    name = client.get("sasl.username") or client.get("sasl.oauthbearer.client.id")
    return f"User:{name}" if name else "User:PRINCIPAL"


def _examples(right: Right, topics: Sequence[str]) -> list[str]:
    kind, name = right.pattern
    if name == EVERY:
        return []
    return [topic for topic in topics if topic.startswith(name)] or [name] if kind == "prefixed" else [name]


def _named(resource: str, examples: Mapping[Right, Sequence[str]]) -> list[str]:
    return sorted({name for right, names in examples.items() if right.resource == resource for name in names})


def _is_lacking(operation: Operation, allowed: Sequence[frozenset[AclOperation] | None]) -> bool:
    wanted = _OPERATIONS.get(operation)
    return wanted is not None and any(some is not None and wanted not in some for some in allowed)


def _topics(admin: AdminClient, names: Sequence[str]) -> Allowed:
    def ask() -> Any:
        wanted = TopicCollection(list(names))
        return admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=ASK_TIMEOUT_S)

    return _allowed(ask) if names else {}


def _groups(admin: AdminClient, names: Sequence[str]) -> Allowed:
    def ask() -> Any:
        return admin.describe_consumer_groups(
            list(names), include_authorized_operations=True, request_timeout=ASK_TIMEOUT_S
        )

    return _allowed(ask) if names else {}


def _allowed(ask: Callable[[], Mapping[str, Any]]) -> Allowed:
    found: dict[str, frozenset[AclOperation] | None] = {}
    for name, answer in ask().items():
        try:
            operations = answer.result(ASK_TIMEOUT_S + 1).authorized_operations
        except KafkaException as error:
            found[name] = frozenset() if error.args[0].code() in _REFUSED else None
        except TimeoutError:
            found[name] = None
        else:
            found[name] = frozenset(operations) if operations else None  # a broker that doesn't tell
    return found


def _uncreatable(admin: AdminClient, names: Sequence[str]) -> frozenset[str]:
    """Names of topics that the brokers wouldn't let us make; nothing is made."""
    if not names:
        return frozenset()
    wanted = [NewTopic(name, 1, -1) for name in names]
    refused = set()
    for name, answer in admin.create_topics(wanted, validate_only=True, request_timeout=ASK_TIMEOUT_S).items():
        try:
            answer.result(ASK_TIMEOUT_S + 1)
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                refused.add(name)
        except TimeoutError:
            continue  # nobody tells
    return frozenset(refused)
