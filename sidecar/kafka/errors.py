"""Kafka's errors, and what they mean to whom: one table for each question that somebody asks of an error.

Four tables say that an error passes by itself. They differ, as the questions do:

    READING_PASSES    a client tells its reader of it, mends it and reads on. Readers know neither a coordinator nor a
                      controller; what a client isn't known to survive is answered by a new one
    NEW_TOPIC_PASSES  the same, of a topic that was just made: not every broker has heard of it
    CREATING_PASSES   a topic is to be made, and brokers are just starting, are too few yet, or take another controller.
                      A partition that doesn't exist yet has no leader to wait for
    AWAY              any question to the cluster, also to a coordinator: somebody who is needed doesn't answer

Three more say what a record that isn't sent is due to: OF_ONE_RECORD, OF_THE_TARGET, SILENT_PARTITION. They are for
senders that abort the transaction and then look for the guilty. Others have their own tables, for a reason:

* the engine keeps the record and gives its refusal a name and a way out; it knows no client, so its tables are of names
  (`engine/partition/exits.py`).
* the policies take only for refused what the topic can't have, since it is the topic that says the rest
  (`policies/topic/store.py`); they know nothing of the sidecar.
* REST answers a refusal in its own words (`api/sender.py`).
* the pipeline shares no client with the sidecar (`pipeline/sending/`).

At the end: how what goes wrong within the engine's clients comes out of them.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from policies.kafka_clients import is_fatal
from sidecar.model.ports import UNPROVEN

log = logging.getLogger(__name__)

READING_PASSES: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
    | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT}
)
NEW_TOPIC_PASSES: Final = READING_PASSES | {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
CREATING_PASSES: Final = frozenset(
    {KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.NOT_CONTROLLER, KafkaError.THROTTLING_QUOTA_EXCEEDED}
    | {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
)
AWAY: Final = READING_PASSES | (
    {KafkaError.NETWORK_EXCEPTION, KafkaError.BROKER_NOT_AVAILABLE, KafkaError._DESTROY_BROKER}
    | {KafkaError.NOT_CONTROLLER}
    | {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
)

# What is told of such an error to who doesn't know the client: /readyz shows it.
_WORDS: Final = {
    KafkaError._TRANSPORT: "the connection to a broker broke",
    KafkaError._ALL_BROKERS_DOWN: "no broker can be reached",
    KafkaError._TIMED_OUT: "the brokers took too long",
    KafkaError._RESOLVE: "the name of a broker has no address",
    KafkaError.LEADER_NOT_AVAILABLE: "a partition has no leader",
    KafkaError.NOT_LEADER_FOR_PARTITION: "a partition has another leader now",
    KafkaError.REQUEST_TIMED_OUT: "the brokers took too long",
    KafkaError.NETWORK_EXCEPTION: "a broker lost a connection",
    KafkaError.BROKER_NOT_AVAILABLE: "a broker is away",
    KafkaError._DESTROY_BROKER: "the cluster has let a broker go",
    KafkaError.NOT_CONTROLLER: "the cluster has another controller now",
    KafkaError.COORDINATOR_NOT_AVAILABLE: "the group has no coordinator",
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: "the group's coordinator is starting",
    KafkaError.NOT_COORDINATOR: "the group has another coordinator now",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the brokers know no such topic or partition",
    KafkaError._UNKNOWN_TOPIC: "the brokers know no such topic",
    KafkaError._UNKNOWN_PARTITION: "the brokers know no such partition",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "no right to the topic",
}
_ORIGINS: Final = ("Local: ", "Broker: ")  # before the client's own words: which side of it an error is of

# Of a topic that brokers don't know, or a partition: theirs, or the client's own for what they said before.
UNKNOWN_PLACE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
# Answers about a topic that mean: not there for us. Any other error is no answer.
ABSENT: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION}
)

OF_ONE_RECORD: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_MSG}
)
OF_THE_TARGET: Final = ABSENT | UNKNOWN_PLACE | {KafkaError.POLICY_VIOLATION}
# Of a partition that can't take anything now, whatever it is.
SILENT_PARTITION: Final = frozenset(
    {KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE}
    | {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
# Of what was still queued when its sender gave up: says nothing about the record.
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
# Of brokers that have no transactions: the client goes on asking, and nothing comes of it.
WITHOUT_TRANSACTIONS: Final = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})
# Somebody else has begun with this transactional id.
TAKEN_OVER: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def is_away(error: BaseException) -> bool:
    """Brokers don't answer, or one that is needed: the same may be right a moment later."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, TimeoutError) or (isinstance(chain, KafkaException) and chain.args[0].code() in AWAY):
            return True
        chain = chain.__cause__
    return False


def words_of(error: KafkaError) -> str:
    """Plain words for an error; the client's own where there are none."""
    known = _WORDS.get(error.code())
    if known is not None:
        return known
    words: str = error.str()
    for origin in _ORIGINS:
        words = words.replace(origin, "")
    return words


def delivery_error(error: KafkaError | None, message: Any) -> KafkaError | None:
    """Error of a delivery report; None: it proves that the record is in its topic. One without an offset proves
    nothing, and is an error, too (`sidecar.model.ports.Unproven`).
    """
    return KafkaError(KafkaError._FAIL, UNPROVEN.str()) if error is None and message.offset() is None else error


WORDS_LOST: Final = "a fatal error of the client, whose words were lost while it logged: its line in the log says more"
OnProblem = Callable[[str], None]


def error_callback(on_problem: OnProblem) -> Callable[[KafkaError], None]:
    """Clients report here what they recover from by themselves: it shows in /readyz and in the log.

    What they can't recover from is raised: it comes out of `poll` or `consume` and ends the engine.
    """

    def report(error: KafkaError) -> None:
        if is_fatal(error):
            raise KafkaException(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            on_problem("all brokers are down")
        log.warning("kafka client", extra={"error": str(error)})

    return report


def raising_what_is_meant(serve: Callable[[float], int]) -> Callable[[float], int]:
    """A producer's `poll` or `flush`. What it doesn't survive comes as KafkaException, whatever it serves meanwhile.

    The client sets that exception while it serves its events, and calls the next delivery report none the less; the
    interpreter makes a SystemError of it, with the client's own words as its cause. Or it logs its next line, and looks
    in vain for its logger's method, of which comes an AttributeError without them.
    """

    def served(seconds: float) -> int:
        try:
            return serve(seconds)
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from None
            raise
        except AttributeError as error:
            if isinstance(error.obj, logging.Logger):
                raise KafkaException(KafkaError(KafkaError._FATAL, WORDS_LOST, True)) from None
            raise

    return served
