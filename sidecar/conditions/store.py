"""Spans of conditions in Redis, where every replica finds those of all.

    tickover:<group>:conditions:partitions  ZSET  spans that have ended, by the epoch ms at which they did
    tickover:<group>:conditions:targets     ZSET
    tickover:<group>:conditions:processes   ZSET
    tickover:<group>:conditions:open        HASH  run -> what was under way as of its last sign, written every 2 s

    span         [kind, topic, partition, from_ms, to_ms, run, replica]
    under way    {"at": epoch ms, "spans": [span, ...]}

A process that was killed ends nothing: its last sign is the end of what it had under way. Any other one files that
away after a minute. Redis is expendable: what it loses is told as not recorded. So each key has a limit and an expiry;
they are apart lest targets that are limited all day push out who had which partition.

Whoever may write to Redis may say anything here: what isn't ours (`exchange.py`), or isn't signed where there are
keys, is passed over. So are kinds that a newer version writes.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from redis.exceptions import ResponseError

from policies.fields import is_topic
from sidecar.conditions.attribution import Sign, Span
from sidecar.lookup.exchange import Refused, opened, sealed
from sidecar.model.condition import OF_PARTITIONS, OF_TARGETS, Kind, Subject
from sidecar.overflow.connection import Client, failures
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.overflow.signing import CONDITION, UNSIGNED, Signing

KEPT_S: Final = 7 * 86_400
SPANS_MAX: Final = 10_000  # of each key: 2 MB
OWNERS_BACK_MS: Final = 86_400_000  # who had a partition before it was nobody's may have lost it long before
RUNS_MAX: Final = 1_000  # that are read
DEAD_MS: Final = 60_000  # what a process had under way is filed away when it gave no sign for so long
FILE_EVERY: Final = 30  # writes
WORD_MAX: Final = 300
TIME_MAX_MS: Final = (1 << 53) - 1
PARTITIONS: Final = "partitions"
TARGETS: Final = "targets"
PROCESSES: Final = "processes"
FOREIGN: Final = (ValueError, TypeError, KeyError, IndexError, RecursionError)  # Refused is a ValueError
_KINDS: Final = frozenset(map(str, Kind))

log = logging.getLogger(__name__)


class RedisSpanLog:
    """Of one group, for one run of one process. For one writing thread at a time; reading is for any."""

    def __init__(self, client: Client, group: str, signing: Signing = UNSIGNED) -> None:
        self.run = uuid4().hex
        self._client = client
        self._signing = signing
        self._prefix = prefix_of(group)
        self._writes = 0
        self._has_told = False

    def write(self, ended: list[Span], under_way: list[Span], at_ms: int) -> None:
        """See `SpanLog`. Repeated after a failure, it changes nothing more. Raises OverflowFailure."""
        with failures(), _known_types():
            self._add(ended, at_ms)
            self._sign(under_way, at_ms)
            if self._writes % FILE_EVERY == 0:
                self._file_dead(at_ms)
            self._writes += 1

    def read(self, since_ms: int) -> tuple[list[Span], list[Span]]:
        """See `SpanLog`. Raises OverflowFailure."""
        ended: list[Span] = []
        with failures(), _known_types():
            for key in self._ended_keys:
                from_ms = since_ms - OWNERS_BACK_MS if key.endswith(PARTITIONS) else since_ms
                members = self._client.zrangebyscore(key, from_ms, "+inf", start=0, num=SPANS_MAX)
                ended += (span for member in members for span in self._spans(key, member))
            signs = [(at_ms, span) for _, at_ms, spans in self._under_way() for span in spans]
        under_way = [span for at_ms, span in signs if span.to_ms >= at_ms]
        ended += [span for at_ms, span in signs if span.to_ms < at_ms]  # and may have begun again since
        return [one for one in ended if one.subject.kind in OF_PARTITIONS or one.to_ms > since_ms], under_way

    def signs(self) -> list[Sign]:
        """The last sign of each run that has not ended in order, for a minute after it. Raises OverflowFailure."""
        with failures(), _known_types():
            return [Sign(run, spans[0].replica, at_ms) for run, at_ms, spans in self._under_way() if spans]

    # --- writing --------------------------------------------------------------------------------------------------

    def _add(self, spans: Iterable[Span], at_ms: int) -> None:
        by_key: dict[str, dict[bytes, int]] = {}
        for span in spans:
            key = self._key_of(span)
            data = json.dumps([*span.subject, *span[1:]]).encode()
            by_key.setdefault(key, {})[sealed(self._signing, CONDITION, key, data)] = span.to_ms
        for key, members in by_key.items():
            self._client.zadd(key, members)
            self._client.zremrangebyscore(key, "-inf", at_ms - KEPT_S * 1_000)
            self._client.zremrangebyrank(key, 0, -(SPANS_MAX + 1))
            self._client.expire(key, KEPT_S)

    def _sign(self, under_way: list[Span], at_ms: int) -> None:
        key = self._open_key
        if not under_way:
            self._client.hdel(key, self.run)
            return
        document = {"at": at_ms, "spans": [[*one.subject, *one[1:]] for one in under_way]}
        data = sealed(self._signing, CONDITION, f"{key}:{self.run}", json.dumps(document).encode())
        self._client.hset(key, self.run, data)
        self._client.expire(key, KEPT_S)

    def _file_dead(self, now_ms: int) -> None:
        """File what runs had under way that gave no sign for long. Two replicas that do so write the same."""
        for run, at_ms, spans in self._under_way():
            if now_ms - at_ms > DEAD_MS:
                self._add(spans, now_ms)
                self._client.hdel(self._open_key, run)

    # --- reading --------------------------------------------------------------------------------------------------

    def _under_way(self) -> Iterator[tuple[str, int, list[Span]]]:
        """Run, last sign, and what was under way then."""
        key = self._open_key
        for field, data in list(self._client.hgetall(key).items())[:RUNS_MAX]:
            run = field.decode(errors="replace")
            try:
                document = json.loads(opened(self._signing, CONDITION, f"{key}:{run}", data))
                at_ms = document["at"]
                spans = [_span(row) for row in document["spans"] if row[0] in _KINDS]
                if not _is_time(at_ms) or any(one.run != run for one in spans):
                    raise Refused("not as it was written")
            except FOREIGN:
                self._tell(key)
                continue
            yield run, at_ms, spans

    def _spans(self, key: str, member: bytes) -> Iterator[Span]:
        try:
            row = json.loads(opened(self._signing, CONDITION, key, member))
            if row[0] in _KINDS:
                yield _span(row)
        except FOREIGN:
            self._tell(key)

    def _tell(self, key: str) -> None:
        """Once: whoever writes there may do so each second."""
        if not self._has_told:
            self._has_told = True
            log.warning("something in Redis is no condition of ours: it is passed over", extra={"key": key})

    # --- keys -----------------------------------------------------------------------------------------------------

    def _key_of(self, span: Span) -> str:
        kind = span.subject.kind
        what = PARTITIONS if kind in OF_PARTITIONS else TARGETS if kind in OF_TARGETS else PROCESSES
        return f"{self._prefix}{what}"

    @property
    def _ended_keys(self) -> list[str]:
        return [f"{self._prefix}{what}" for what in (PARTITIONS, TARGETS, PROCESSES)]

    @property
    def _open_key(self) -> str:
        return f"{self._prefix}open"


@contextmanager
def _known_types() -> Iterator[None]:
    """A key that somebody has put another type in place of can't be used until it is deleted."""
    try:
        yield
    except ResponseError as error:
        raise OverflowUnavailable(f"Redis refuses to keep conditions: {error}") from error


def prefix_of(group: str) -> str:
    """How the names of all these keys begin."""
    return f"tickover:{group}:conditions:"


def _span(row: Any) -> Span:
    """A span as it was written. Raises ValueError or TypeError."""
    kind, topic, partition, from_ms, to_ms, run, replica = row
    if not (_is_time(from_ms) and _is_time(to_ms) and from_ms <= to_ms):
        raise ValueError("no times")
    if type(partition) is not int or not (topic == "" or is_topic(topic)):
        raise ValueError("no place")
    if not all(isinstance(word, str) and len(word) <= WORD_MAX for word in (run, replica)):
        raise ValueError("no name")
    return Span(Subject(Kind(kind), topic, partition), from_ms, to_ms, run, replica)


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= TIME_MAX_MS
