"""Kafka's clients as one process makes them: who changes the password changes it for all that live, and all to come.

A client logs in whenever it connects, and takes another password from then on; what is connected goes on. librdkafka
keeps the password under a lock of its own, so any thread may change it, whoever uses the client.

The process has one principal, so what is known here is the process's, not an object's: clients are made in twenty
places, each of settings that were copied long before.

Whether a client still reaches brokers is asked here, too (`living`, `reaches`): one may have lost them for good.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition, admin

PASSWORD: Final = "sasl.password"
USERNAME: Final = "sasl.username"
TELL_S: Final = 2.0
IDLE_S: Final = 1.0  # of whose owner has made no call for so long, the client is free

LEADER_S: Final = 0.1  # until a partition may have another leader
# Another leader is being chosen, or doesn't know yet what it has.
LEADER_MOVES: Final = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE}
    | {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.REPLICA_NOT_AVAILABLE}
)

Login = tuple[str, str] | None  # user and password as settings have them

log = logging.getLogger(__name__)

_lock: Final = threading.Lock()
_living: Final[WeakSet[Any]] = WeakSet()
_replaced: Final[dict[tuple[str, str], str]] = {}  # user and former password -> the one to use


def change_password(user: str, former: str, password: str) -> int:
    """From now on this user logs in with `password` wherever settings have the `former` one.

    Returns how many living clients are told.
    """
    with _lock:
        _replaced[user, former] = password
        mine = [client for client in _living if client.login == (user, former)]
    count = len(mine)
    # By a thread of its own: it may be the last that holds a client, whose end waits for brokers.
    telling = threading.Thread(target=_tell, args=(mine, user, password), name="password", daemon=True)
    del mine
    telling.start()
    telling.join(TELL_S)
    return count


def _tell(clients: list[Any], user: str, password: str) -> None:
    _each(clients, lambda client: client.set_sasl_credentials(user, password))
    consumers = [client for client in clients if isinstance(client, Consumer)]
    clients.clear()
    if consumers:  # whose owner makes no call now would be refused again and again until it does
        threading.Event().wait(IDLE_S)
        _each(consumers, Consumer.take_password)


def _each(clients: list[Any], tell: Callable[[Any], None]) -> None:
    for client in clients:
        try:
            tell(client)
        except (KafkaException, RuntimeError, ValueError) as error:  # it is closed, and somebody holds it still
            log.info("a Kafka client takes no new password", extra={"error": type(error).__name__})


def _present(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the password as it is now."""
    login = _login(settings)
    with _lock:
        password = _replaced.get(login) if login is not None else None
    return dict(settings) if password is None else {**settings, PASSWORD: password}


def _login(settings: Mapping[str, Any]) -> Login:
    user, password = settings.get(USERNAME), settings.get(PASSWORD)
    return None if user is None or password is None else (str(user), str(password))


def living() -> "list[Client]":
    """Every client of this process that nobody has closed."""
    with _lock:
        return list(_living)


def _forget(client: Any) -> None:
    with _lock:
        _living.discard(client)


def _answers(ask: Callable[..., Any], topic: str, seconds: float) -> bool | None:
    try:
        ask(topic, timeout=seconds)
    except KafkaException:
        return False
    except RuntimeError:  # it is closed
        return None
    return True


def is_fatal(error: KafkaError) -> bool:
    """Whether the client is of no use any more. It says so in two ways, and not always in both."""
    return error.fatal() or error.code() == KafkaError._FATAL


def _live(client: Any) -> None:
    with _lock:
        _living.add(client)
        password = _replaced.get(client.login) if client.login is not None else None
    if password is not None:  # it may have changed while the client was made
        client.set_sasl_credentials(client.login[0], password)


class ClientLost(KafkaException):
    """The client reaches no broker any more, while others do: its owner takes another."""

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._ALL_BROKERS_DOWN, "this client reaches none any more, others do"))


class Producer(confluent_kafka.Producer):
    """confluent-kafka's."""

    def __init__(self, settings: Mapping[str, Any], **more: Any) -> None:
        super().__init__(_present(settings), **more)
        self.login = _login(settings)
        self.is_lost = False
        _live(self)

    def lose(self) -> None:
        """From now on `poll` raises ClientLost, as for any other error that the client doesn't survive."""
        self.is_lost = True

    def poll(self, *arguments: Any, **named: Any) -> int:
        if self.is_lost:
            raise ClientLost
        served: int = super().poll(*arguments, **named)
        return served

    def reaches(self, topic: str, seconds: float) -> bool | None:
        """Whether a broker says something of this topic in time; None: nobody needs it any more."""
        return _answers(self.list_topics, topic, seconds)

    def close(self, *arguments: Any, **named: Any) -> Any:
        _forget(self)
        return super().close(*arguments, **named)


class LastingProducer:
    """A producer for any number of threads, made with the first record, and anew after a fatal error: who had one takes
    nothing more. `rest` lets it go again: a client has threads, connections and buffers.

    `let_go` is called once with each that is of no use any more, and with the error. Not to be closed there: others may
    be in a call of it, and the last one lets it go.
    """

    def __init__(
        self,
        make: Callable[[], Producer],
        let_go: Callable[[Producer, KafkaException], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._let_go = let_go
        self._monotonic_s = monotonic_s
        self._producer: Producer | None = None
        self._used_s = -math.inf
        self._changing = threading.RLock()

    @property
    def current(self) -> Producer:
        """The client, which is made if there is none."""
        with self._changing:
            self._used_s = self._monotonic_s()
            if (worn := self._producer) is not None and worn.is_lost:
                self._retire(worn, ClientLost())
            if self._producer is None:
                self._producer = self._make()
            return self._producer

    def produce(self, *record: Any, **more: Any) -> None:
        """As the client's. Raises KafkaException and BufferError."""
        with self._changing:  # nobody lets it go between the two
            producer = self.current
            try:
                producer.produce(*record, **more)
            except KafkaException as error:
                if not is_fatal(error.args[0]):
                    raise
                self._successor(producer, error).produce(*record, **more)

    def poll(self, seconds: float) -> None:
        """As the client's; without one there is nothing to report."""
        if (producer := self._producer) is not None and not producer.is_lost:
            producer.poll(seconds)

    def flush(self, seconds: float) -> None:
        """As the client's; without one nothing is under way."""
        if (producer := self._producer) is not None:
            producer.flush(seconds)

    def rest(self, idle_s: float) -> bool:
        """Let the client go if it has had nothing to do for so long. Returns whether there is none now."""
        self.poll(0)  # a report that nobody has taken is something to do
        with self._changing:
            if self._producer is not None and (len(self._producer) or self._monotonic_s() - self._used_s < idle_s):
                return False
            self._producer = None  # not closed: somebody may be in a call of it, and the last one lets it go
            return True

    def close(self) -> None:
        """End it, whatever is under way. Twice is harmless."""
        with self._changing:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _successor(self, worn: Producer, error: KafkaException) -> Producer:
        if self._producer is worn:
            self._retire(worn, error)
        return self.current

    def _retire(self, worn: Producer, error: KafkaException) -> None:
        self._producer = None
        self._let_go(worn, error)


class Consumer(confluent_kafka.Consumer):
    """confluent-kafka's. It makes one call at a time, and who asks from another thread waits for as long as the owner
    polls and polls again. So a new password is taken with the owner's next call, or when there is none for a while;
    and whether it reaches brokers is found out in the owner's next call.
    """

    def __init__(self, settings: Mapping[str, Any], **more: Any) -> None:
        super().__init__(_present(settings), **more)
        self.login = _login(settings)
        self._made_of = (settings, more)
        self._begins: dict[tuple[str, int], int] = {}  # offsets as they were assigned
        self._fresh: deque[tuple[str, str]] = deque(maxlen=1)
        self._asked: tuple[str, float] | None = None  # whether it reaches brokers
        self._reached: bool | None = None
        self._is_lost = False
        _live(self)

    def set_sasl_credentials(self, user: str, password: str) -> None:
        """From the next call on. From any thread."""
        self._fresh.append((user, password))

    def take_password(self) -> None:
        """The one that was told last, if there is one. May wait for the owner's call to end."""
        if self._fresh:
            with suppress(IndexError):
                super().set_sasl_credentials(*self._fresh.popleft())

    def reaches(self, topic: str, seconds: float) -> bool | None:
        """As the producer's, of the time when this was asked last; None: its owner has made no call since."""
        reached, self._reached, self._asked = self._reached, None, (topic, seconds)
        return reached

    def lose(self) -> None:
        """From now on its owner's calls raise ClientLost. From any thread."""
        self._is_lost = True

    def successor(self) -> "Consumer":
        """Another of the same settings, which reads on where this one is, of the partitions that it was assigned. This
        one is closed.
        """
        settings, more = self._made_of
        other = Consumer(settings, **more)
        places = self.position(self.assignment())
        for place in places:
            if place.offset < 0:  # nothing was read of it yet
                place.offset = self._begins[place.topic, place.partition]
        other.assign(places)
        self.close()
        return other

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._begins = {(place.topic, place.partition): place.offset for place in partitions}
        super().assign(partitions)

    def poll(self, *arguments: Any, **named: Any) -> Any:
        self._heed()
        return super().poll(*arguments, **named)

    def consume(self, *arguments: Any, **named: Any) -> list[Message]:
        self._heed()
        return super().consume(*arguments, **named)

    def list_topics(self, *arguments: Any, **named: Any) -> Any:
        self._heed()
        return super().list_topics(*arguments, **named)

    def committed(self, *arguments: Any, **named: Any) -> Any:
        self._heed()
        return super().committed(*arguments, **named)

    def get_watermark_offsets(  # type: ignore[override]
        self, partition: TopicPartition, timeout: float
    ) -> tuple[int, int]:
        """As the client's, but each end by a question of its own: see `log_bounds`."""
        [bounds] = self.log_bounds([partition], timeout).values()
        return bounds

    def log_bounds(self, places: Sequence[TopicPartition], seconds: float) -> dict[tuple[str, int], tuple[int, int]]:
        """The first offset of each partition, and where it ends for this reader; `seconds` for each of two questions.

        The client's own get_watermark_offsets asks both at once, and where one fails and the other is answered at the
        same moment it takes the answer for both: a log that has lost all, or has nothing. Raises KafkaException.
        """
        self._heed()
        first, end = (self._log_ends(places, which, seconds) for which in (OFFSET_BEGINNING, OFFSET_END))
        return {place: (offset, end[place]) for place, offset in first.items()}

    def _log_ends(self, places: Sequence[TopicPartition], which: int, seconds: float) -> dict[tuple[str, int], int]:
        """One end of each; asked again while another leader is being chosen."""
        left = int(seconds / LEADER_S)
        while True:
            asked = [TopicPartition(place.topic, place.partition, which) for place in places]
            try:
                told: list[TopicPartition] = super().offsets_for_times(asked, timeout=seconds) if asked else []
                for one in told:
                    if one.error is not None or one.offset < 0:
                        raise KafkaException(one.error or KafkaError(KafkaError._TIMED_OUT, "no answer about a log"))
            except KafkaException as error:
                if error.args[0].code() not in LEADER_MOVES or not left:
                    raise
                left -= 1
                time.sleep(LEADER_S)
            else:
                return {(one.topic, one.partition): one.offset for one in told}

    def close(self) -> None:
        """As the client's, which waits for brokers: of one that is lost it would wait for ever, and does so alone."""
        _forget(self)
        if self._is_lost:
            threading.Thread(target=super().close, name="lost", daemon=True).start()
        else:
            super().close()

    def _heed(self) -> None:
        """Take what others have told it, and answer what they ask."""
        self.take_password()
        if self._is_lost:
            raise ClientLost
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._reached = _answers(super().list_topics, *asked)


def batch(consumer: confluent_kafka.Consumer, most: int, wait_s: float) -> list[Message]:
    """Messages that are there, at most so many; waits for the first one alone. `consume` with a wait would wait for all
    of them, and the end of a partition has less. Raises KafkaException only where nothing was taken.
    """
    taken: list[Message] = [] if (first := consumer.poll(wait_s)) is None else [first]
    with suppress(KafkaException):  # what lasts is raised by the next call; another client would read on behind these
        taken += consumer.consume(most - 1, 0) if taken else []
    return taken


class AdminClient:
    """confluent-kafka's, with all its methods. It keeps nothing, so `renew` may make it anew at any time."""

    def __init__(self, settings: Mapping[str, Any], **more: Any) -> None:
        make: Any = admin.AdminClient
        self._make: Callable[[], Any] = lambda: make(_present(settings), **more)
        self._client = self._make()
        self.login = _login(settings)
        _live(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def set_sasl_credentials(self, user: str, password: str) -> None:
        """As the client's."""
        self._client.set_sasl_credentials(user, password)

    def reaches(self, topic: str, seconds: float) -> bool | None:
        """As the producer's."""
        return _answers(self._client.list_topics, topic, seconds)

    def renew(self) -> None:
        """Another client takes the place of the one there is, which ends with the calls that are under way."""
        self._client = self._make()


Client = Producer | Consumer | AdminClient
