"""The demo's judge: what must arrive, what did, and the difference. It knows no client and no clock.

Everything that is sent is announced here first, with the record that must come of it: topic, key, value, the user's
headers in their order, the headers that the sidecar writes, and the time before which it must not come. What then
arrives is right, or it is one of these:

    early       appended by the broker before it was due
    wrong       another key, value or header than announced, or never announced at all
    repeated    arrived before
    lost        not there LOST_AFTER_MS after it was due
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from policies.headers import ATTEMPT, CONTROL_PREFIX, DETAIL, DUE, REASON, REDRIVE_PLAN
from sidecar.model.record import Headers

MESSAGE_ID: Final = "demo-id"  # the user's header by which a record is known
LOST_AFTER_MS: Final = 10_000
SEEN_MAX: Final = 500_000  # of those that arrived; one that comes again later counts as wrong
FAULTS_SHOWN_MAX: Final = 10
TEXT_MAX: Final = 300


class Identity(NamedTuple):
    """One delivery: where, of which message, and the text of its attempt ("" for a first one), or by which redrive."""

    topic: str
    message: str
    attempt: str


@dataclass(frozen=True, slots=True)
class Expected:
    """One delivery as it must be. `own` are the sidecar's headers, `own_starts` those known by their beginning."""

    identity: Identity
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    due_ms: int
    own: Mapping[str, bytes] = field(default_factory=dict)
    own_starts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def fires(self) -> bool:
        """Whether the sidecar emits it at its due time: not a record sent directly, and not a dead letter."""
        return DUE in self.own and REASON not in self.own

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return REASON in self.own and not self.is_quarantined

    @property
    def is_quarantined(self) -> bool:
        """Whether it could not be decided."""
        return DETAIL in self.own_starts

    @property
    def is_redriven(self) -> bool:
        """Whether it is a dead letter that was sent again."""
        return REDRIVE_PLAN in self.own_starts


class Arrived(NamedTuple):
    """A record as a consumer found it. `appended_ms` is the time of its timestamp, on a LogAppendTime topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    appended_ms: int


class Oracle:
    """Used by one thread."""

    def __init__(self) -> None:
        self.fired = self.retries = self.dead = self.quarantined = self.redriven = 0
        self.early = self.wrong = self.repeated = 0
        self.foreign = 0  # what the user sent by hand, or had redriven
        self._faults: deque[str] = deque(maxlen=FAULTS_SHOWN_MAX)
        self.latest_due_ms = 0
        self._late_ms: Counter[int] = Counter()
        self._outstanding: dict[Identity, Expected] = {}
        self._seen: OrderedDict[Identity, None] = OrderedDict()

    def expect(self, expected: Expected) -> None:
        """Announce a delivery, before that is sent of which it comes."""
        self._outstanding[expected.identity] = expected
        self.latest_due_ms = max(self.latest_due_ms, expected.due_ms)

    def withdraw(self, identity: Identity) -> None:
        """Expect a delivery no longer: the record that it was to come of could not be sent."""
        self._outstanding.pop(identity, None)

    def judge(self, arrived: Arrived) -> Expected | None:
        """Count one record; what was announced of it, when it is the first that came of that."""
        identity = identity_of(arrived)
        expected = None if identity is None else self._outstanding.pop(identity, None)
        if identity is None or (expected is None and identity not in self._seen and _is_redriven(arrived)):
            self.foreign += 1
            return None
        if expected is None:
            self._judge_unannounced(identity, arrived)
            return None
        self._remember(identity)
        differences = difference(expected, arrived)
        if differences:
            self.wrong += 1
            self._blame("wrong", identity, differences)
        if expected.fires:
            self._time(expected, arrived.appended_ms)
            self.retries += ATTEMPT in expected.own
        self.dead += expected.is_dead
        self.quarantined += expected.is_quarantined
        self.redriven += expected.is_redriven
        return expected

    @property
    def outstanding(self) -> int:
        """Announced and not yet there."""
        return len(self._outstanding)

    def lost(self, now_ms: int) -> int:
        """Announced, and not there long after it was due. It may still come: then it isn't lost any more."""
        return len(self._missing(now_ms))

    def examples(self, now_ms: int) -> list[str]:
        """Some of the faults in words, the latest of each kind."""
        lost = self._missing(now_ms)[-FAULTS_SHOWN_MAX:]
        return [*self._faults, *(_words("lost", expected.identity, f"due at {expected.due_ms}") for expected in lost)]

    def _missing(self, now_ms: int) -> list[Expected]:
        limit_ms = now_ms - LOST_AFTER_MS
        return [expected for expected in self._outstanding.values() if expected.due_ms < limit_ms]

    def lateness_ms(self, share: float) -> int:
        """Append time minus due which this share (0..1) of all emitted records did not pass."""
        wanted = share * self._late_ms.total()
        reached = 0
        for late_ms in sorted(self._late_ms):
            reached += self._late_ms[late_ms]
            if reached >= wanted:
                return late_ms
        return 0

    def _judge_unannounced(self, identity: Identity, arrived: Arrived) -> None:
        if identity in self._seen:
            self.repeated += 1
            self._blame("repeated", identity, "had arrived before")
        else:
            self.wrong += 1
            own = ", ".join(f"{name}={value!r}" for name, value in arrived.headers if name.startswith(CONTROL_PREFIX))
            self._blame("wrong", identity, f"nothing like it was to come; {own}")

    def _time(self, expected: Expected, appended_ms: int) -> None:
        late_ms = appended_ms - expected.due_ms
        self.fired += 1
        self._late_ms[late_ms] += 1
        if late_ms < 0:
            self.early += 1
            self._blame("early", expected.identity, f"by {-late_ms} ms")

    def _remember(self, identity: Identity) -> None:
        self._seen[identity] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def _blame(self, fault: str, identity: Identity, text: str) -> None:
        self._faults.append(_words(fault, identity, text))


def identity_of(arrived: Arrived) -> Identity | None:
    """Identity of a delivery, by its headers; None when it isn't the demo's."""
    message = _text(arrived.headers, MESSAGE_ID)
    plan = _text(arrived.headers, REDRIVE_PLAN).partition("/")[0]  # and behind it, which leg of the redrive
    attempt = redrive_of(plan) if plan else _text(arrived.headers, ATTEMPT)
    return Identity(arrived.topic, message, attempt) if message else None


def redrive_of(plan: str) -> str:
    """Text in place of an attempt, in the identity of a delivery by this redrive."""
    return f"redrive {plan}"


def _is_redriven(arrived: Arrived) -> bool:
    return any(name == REDRIVE_PLAN for name, _ in arrived.headers)


def difference(expected: Expected, arrived: Arrived) -> str:
    """In words, what of the record is not as announced; empty when all is."""
    differences = [
        f"{what}: {found!r} instead of {wanted!r}"
        for what, wanted, found in (("key", expected.key, arrived.key), ("value", expected.value, arrived.value))
        if wanted != found
    ]
    users = tuple((name, value) for name, value in arrived.headers if not name.startswith(CONTROL_PREFIX))
    if users != expected.headers:
        differences.append(f"headers: {users!r} instead of {expected.headers!r}")
    return "; ".join((*differences, *_own_differences(expected, arrived.headers)))


def _own_differences(expected: Expected, headers: Sequence[tuple[str, bytes | None]]) -> list[str]:
    own = [(name, value) for name, value in headers if name.startswith(CONTROL_PREFIX)]
    wanted = {**expected.own_starts, **expected.own}
    differences = [f"{name} twice" for name, count in Counter(name for name, _ in own).items() if count > 1]
    differences += [f"{name} too much" for name, _ in own if name not in wanted]
    found = dict(own)
    for name, value in wanted.items():
        here = found.get(name)
        right = here == value if name in expected.own else here is not None and here.startswith(value)
        if not right:
            differences.append(f"{name}: {here!r} instead of {value!r}")
    return differences


def _words(fault: str, identity: Identity, text: str) -> str:
    attempt = f", attempt {identity.attempt}" if identity.attempt else ""
    return f"{fault}: {identity.message}{attempt} on {identity.topic} {text}"[:TEXT_MAX]


def _text(headers: Sequence[tuple[str, bytes | None]], name: str) -> str:
    for found, value in headers:
        if found == name:
            return (value or b"").decode(errors="replace")
    return ""
