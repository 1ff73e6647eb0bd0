"""Records that users send: delayed ones and retries, good, odd and bad, and the rulebook they meet."""

from random import Random
from typing import Any, Final

from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.model.record import Headers
from tests.simulation.fake_kafka import CREATE_TIME, VALUE_BYTES_MAX, FakeRecord

DELAYED = "reminders"
RETRIED = "orders-retry"
SOURCES = (DELAYED, RETRIED)
TARGETS = ("mail-a", "mail-b", "orders", "orders-dlq", "reminders-dlq")
QUARANTINE = "tickover.quarantine"
SERIAL = "serial"
LONG_ID_BYTES = 240  # of every other id
ORDERS: Final[tuple[Any, ...]] = (
    None,
    "key",
    {"by": "key", "parked_max": 3},
    {"by": "key", "parked_max": 3, "when_full": "dead_letter"},
)


def rulebook(
    version: int,
    order: Any = None,
    limits: dict[str, Any] | None = None,
    quota: dict[str, int] | None = None,
    breaker: dict[str, Any] | None = None,
) -> PolicyTable:
    """The policy table at a version; each decides differently from the one before. `order`: of retries; `limits`: of
    the targets; `breaker`: of the target of retries.
    """
    reminders = Policy.model_validate(
        {
            "name": "reminders",
            "match": {"topics": [DELAYED]},
            "delay": {
                "default": 700 + 300 * version,
                "max": "10m",
                "spread": 400 * (version % 3),
                "spread_max": "2s",
            },
            "target": {"topic": "mail-a", "allow": ["mail-*"], **(limits or {})},
            "dead_letter": {"topic": "reminders-dlq"},
            "quota": quota,
        }
    )
    orders = Policy.model_validate(
        {
            "name": "orders",
            "match": {"topics": [RETRIED]},
            "order": order,
            "quota": quota,
            "target": limits or {},
            "retry": {
                "attempts": 3,
                "breaker": breaker,
                "backoff": {
                    "kind": "exponential",
                    "initial": 500 * version,
                    "factor": 5,
                    "max": "60s",
                    "jitter": ("none", "full", "equal")[version % 3],
                },
                "timeout": "5m",
                "give_up_on": ["*.ValidationError"],
            },
        }
    )
    return PolicyTable(
        version, {policy.name: Versioned(policy, version, "me", 0, "api") for policy in (reminders, orders)}
    )


class Workload:
    """Draws records. Every one has a serial number of its own, in a header and in its value."""

    def __init__(self, rng: Random, span_ms: int) -> None:
        self._rng = rng
        self._span_ms = span_ms  # longest usual delay
        self._serial = 0
        self._offsets: dict[tuple[str, int, bytes], int] = {}  # where an id was sent last

    def sent(self, record: FakeRecord) -> None:
        """A record is in its source."""
        named = dict(record.named or ())
        if (identity := named.get("tickover-id")) and "tickover-action" not in named:
            self._offsets[record.topic(), record.partition(), identity] = record.offset()

    def record(self, topic: str, partition: int, now_ms: int) -> FakeRecord:
        rng = self._rng
        self._serial += 1
        serial = b"%d" % self._serial
        stamp = (CREATE_TIME, now_ms - rng.choice((0, 0, 0, 5, 2_000)))
        value: bytes | None = b"value " + serial
        key = rng.choice((None, b"", b"key%d" % rng.randint(0, 5)))
        headers: Headers = [(SERIAL, serial), *self._odd_headers()]
        if rng.random() < 0.05:
            value = rng.choice((None, b""))
        headers += self._delay(now_ms) if topic == DELAYED else self._failure(now_ms)
        if rng.random() < 0.35:
            headers, key = self._with_id(headers)
            headers += self._if_offset(topic, partition, dict(headers))
        garbled = False
        if rng.random() < 0.06:
            stamp, value, garbled = self._spoil(headers, stamp, serial, value)
        rng.shuffle(headers)
        return FakeRecord((topic, partition, -1), stamp, (key, value), headers, garbled=garbled)

    def _odd_headers(self) -> Headers:
        odd: Headers = [("a", b"1"), ("a", b"2"), ("a", None), ("", b"\xff\xfe"), ("tickover-unknown", b"mine")]
        return self._rng.sample(odd, self._rng.choice((0, 0, 1, 4)))

    def _delay(self, now_ms: int) -> Headers:
        rng = self._rng
        wait_ms = rng.choice((0, rng.randint(0, 2_000), rng.randint(0, self._span_ms), rng.randint(0, self._span_ms)))
        headers: Headers = []
        if rng.random() < 0.5:
            headers.append(("tickover-delay", b"%dms" % wait_ms))
        elif rng.random() < 0.5:
            headers.append(("tickover-deliver-at", b"%d" % (now_ms + wait_ms - rng.choice((0, 5_000)))))
        if rng.random() < 0.5:
            headers.append(("tickover-target", rng.choice((b"mail-a", b"mail-b", b"mail-b"))))
            if rng.random() < 0.3:
                headers.append(("tickover-target-partition", b"%d" % rng.randint(0, 2)))
        if rng.random() < 0.1:
            headers.append(("tickover-spread", rng.choice((b"0", b"1s", b"9d"))))
        if rng.random() < 0.1:
            headers.append(("tickover-expires-at", b"%d" % (now_ms + wait_ms + rng.randint(-1_000, 3_000))))
        return headers

    def _with_id(self, headers: Headers) -> tuple[Headers, bytes]:
        """A record with an id, mostly one of few; now and then a control record."""
        rng = self._rng
        number = rng.choice((rng.randint(0, 8), rng.randint(0, 8), self._serial))
        key = b"key%d" % rng.choice((number % 3, number % 3, rng.randint(0, 2)))
        identity = ("tickover-id", b"id%d" % number + b"long" * (number % 2 * LONG_ID_BYTES // 4))
        if rng.random() < 0.6:
            return [*headers, identity], key
        action = rng.choice((b"cancel", b"reschedule", b"reschedule", b"fire"))
        controls: Headers = [headers[0], identity, ("tickover-action", action)]
        if action == b"reschedule" and rng.random() < 0.95:
            controls.append(("tickover-delay", b"%dms" % rng.choice((0, 1_500, rng.randint(0, self._span_ms)))))
        return controls, key

    def _if_offset(self, topic: str, partition: int, headers: dict[str, bytes | None]) -> Headers:
        """Some control records mean one offset: that of the last with their id, or one beside it."""
        rng = self._rng
        if "tickover-action" not in headers or rng.random() < 0.6:
            return []
        offset = self._offsets.get((topic, partition, headers["tickover-id"] or b""), 0)
        return [("tickover-if-offset", b"%d" % max(offset + rng.choice((0, 0, 0, 1, -1)), 0))]

    def _failure(self, now_ms: int) -> Headers:
        rng = self._rng
        headers: Headers = []
        if rng.random() < 0.7:
            headers.append(("tickover-attempt", b"%d" % rng.randint(1, 4)))
            headers.append(("tickover-first-failure", b"%d" % (now_ms - rng.randint(0, 100_000))))
            headers.append(("tickover-origin", b"orders/0/%d" % self._serial))
        if rng.random() < 0.5:
            headers.append(("tickover-error-class", rng.choice((b"IOError", b"x.ValidationError"))))
            headers.append(("tickover-error-message", b"m" * rng.choice((3, 9_000))))
        return headers

    def _spoil(
        self, headers: Headers, stamp: tuple[int, int], serial: bytes, value: bytes | None
    ) -> tuple[tuple[int, int], bytes | None, bool]:
        """Make something wrong with it."""
        match self._rng.randint(0, 7):
            case 0:
                headers += [("tickover-delay", b"-5"), ("tickover-attempt", b"x")]
            case 1:
                headers += [("tickover-target", b"mail-a"), ("tickover-target", b"mail-a")]
            case 2:
                headers[:] = [h for h in headers if h[0] != "tickover-target"]
                headers.append(("tickover-target", self._rng.choice((b"mail-missing", b"forbidden", b"reminders"))))
            case 3:
                headers.append(("tickover-action", b"cancel"))
            case 4:
                headers += [("many", b"")] * 40
            case 5:
                return (0, -1), value, False
            case 6:
                return stamp, b"large %s " % serial * self._rng.choice((VALUE_BYTES_MAX // 5, VALUE_BYTES_MAX)), False
            case _:
                return stamp, b"value " + serial, True
        return stamp, value, False
