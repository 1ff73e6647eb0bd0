"""The overflow's own code on a real server, judged by the fake beside it.

Replicas talk to `RedisOverflow` and `RedisRebuildStore`; what the server has then, the fake is given, too. So the
oracle knows what is held, and each answer of the real code is compared with what the fake has. Connections break at any
command, and another process tidies up between two commands of one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition, held_id, place_of
from sidecar.overflow import keys as overflow_layout
from sidecar.overflow.connection import Client
from sidecar.overflow.interface import (
    Change,
    OverflowFull,
    OverflowLoss,
    OverflowUnavailable,
    Promotion,
    Redo,
    number_or_loss,
)
from sidecar.overflow.keys import DUE_MAX_MS, Header, LaneKeys, read_header
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow
from tests.simulation.failing_client import FailingClient, scripts
from tests.simulation.fake_overflow import Copy, Failing, FakeOverflow

GROUP: Final = "sim"
BREAKS: Final = 0.15  # of the commands ask the weather whether the connection breaks
MEDDLING: Final = 0.02  # of the commands have a tidying by another process come ahead of them
LOSSES: Final = 0.02  # of the commands ask the weather whether the server has just come back with less
PAGE: Final = 5
CONTENT, HEADERS, INDEX = "a content", "headers of some contents", "the index"
EVERYWHERE: Final = Position(-1, -1)
END: Final = Position(DUE_MAX_MS, OFFSET_MAX)


class RealOverflow(FakeOverflow):
    """The server, and the fake that has what the server must have. It begins with an empty server."""

    finds_each = False  # its index has one of them
    rewritable = False  # nobody else writes its chunks

    def __init__(self, failing: Failing, client: Client, rng: Random) -> None:
        super().__init__(failing)
        self.server = client
        self.rng = rng
        self.seen: Counter[str] = Counter()  # what happened, to know that the runs are worth their time
        self.wrong: list[str] = []  # who heard of it may have ended without a word
        self.settled: dict[TopicPartition, Position] = {}  # said by who tidied: what is up to there nobody misses
        self.now_ms = 0
        self.disturbed = False  # there was a loss in the middle of a call: its answer says nothing
        self._lacks: dict[TopicPartition, set[str]] = defaultdict(
            set
        )  # of what its number speaks of, until it is rebuilt
        self._lost: dict[TopicPartition, set[int]] = defaultdict(set)  # what they had when they were emptied
        self._copied: tuple[Copy, dict[bytes, bytes], dict[TopicPartition, set[str]]] = (({}, {}, {}, {}, {}), {}, {})
        self._other = RedisOverflow(client, GROUP)
        self._look = RedisRebuildStore(client, GROUP)
        client.flushall()
        for script in scripts().values():
            client.script_load(script)

    def connected(self) -> "Connected":
        """Store that one process talks to."""
        return Connected(self)

    # --- faults of a connection -----------------------------------------------------------------------------------

    def breaks(self) -> bool:
        """See `Faults.breaks`."""
        is_so = self.rng.random() < BREAKS and self._is_cut()
        self.seen["a connection broke"] += is_so
        return is_so

    def _is_cut(self) -> bool:
        try:
            self.failing("command", False)
        except OverflowUnavailable:
            return True
        return False

    def is_full(self) -> bool:
        """See `Faults.is_full`."""
        try:
            self.failing("apply", False)
        except (OverflowFull, OverflowUnavailable) as failure:
            return isinstance(failure, OverflowFull)
        return False

    def meddle(self) -> None:
        """The server may come back with less, or another process tidies: one that had the lane, or has it by now."""
        if self.rng.random() < LOSSES and self._is_cut():
            self.seen["a loss between two commands"] += 1
            self.disturbed = True
            if self.rng.random() < 0.3:
                self.wipe()
            else:
                self.restore(self._copied[0])
        elif self.settled and self.rng.random() < MEDDLING:
            lane = self.rng.choice(list(self.settled))
            try:
                self._other.tidy(lane, self.settled[lane], self.now_ms)
            except OverflowLoss as loss:
                self.has_lost(loss, 0)
            self.follow_tidying(lane, self.settled[lane], self.now_ms)

    def answered(self, script: str, arguments: Sequence[Any], answer: Any) -> None:
        """See `Faults.answered`."""
        seen = self.seen
        match script:
            case "APPLY" | "REDO":
                seen[f"{script} of several blocks"] += int(arguments[1]) - int(arguments[0]) > (script == "REDO")
            case "LIST":
                seen["a second page of headers"] += arguments[-1] != b""
            case "READ":
                seen["a chunk went away before it was read"] += None in answer[1]
                seen["struck copies among what is read"] += answer[2] > 0
            case "REMOVE":
                seen["moved to the fine level"] += answer > 0
            case "UNLINK":
                seen["slots were removed"] += 1
            case "CLEAR":
                seen["cleared"] += answer

    # --- what the fake is given -----------------------------------------------------------------------------------

    def number_of(self, lane: TopicPartition) -> int:
        """The server's number for the lane, -1 when there is none."""
        return self._look.place(lane)

    def follow_changes(self, changes: Sequence[Change], now_ms: int) -> None:
        """Take over those that the server has by now."""
        with self._obeying():
            for change in changes:
                if change.number <= self.number_of(change.lane):
                    if change.lane not in self.hw:
                        self._empty(change.lane)  # else the server had refused a first block
                    self.apply([change], now_ms)
        for change in changes:
            self.has_number(change.lane, self.number_of(change.lane))

    def follow_redos(self, lane: TopicPartition, redos: Sequence[Redo], now_ms: int) -> None:
        """Take over those that the server has by now."""
        place = self.number_of(lane)
        with self._obeying():
            self.redo(lane, [redo for redo in redos if redo.last <= place], now_ms)
        self.has_number(lane, place)

    def follow_reset(self, lane: TopicPartition) -> None:
        """The server's number is gone, or it is there again and all else is gone."""
        if not self.server.exists(LaneKeys(GROUP, lane).hw):
            self.hw.pop(lane, None)
            self.gone.pop(lane, None)
        elif self.number_of(lane) != self._number_there(lane):
            self._empty(lane)
            self.hw[lane] = 0
            self.gone.pop(lane, None)
            self.unnamed.pop(lane, None)
            self._lacks[lane] &= {HEADERS}  # contents without them go when W has passed them
            self.has_number(lane, self.number_of(lane))
            self.compare_lane(lane)

    def follow_tidying(self, lane: TopicPartition, settled: Position, now_ms: int) -> None:
        """However much the server has removed: what is settled nobody misses."""
        self.now_ms = max(now_ms, self.now_ms)
        self.settled[lane] = max(settled, self.settled.get(lane, settled))
        with self._obeying(), suppress(OverflowLoss):  # the server says so now, or when it looks at its keys
            self.tidy(lane, settled, now_ms)

    @contextmanager
    def _obeying(self) -> Iterator[None]:
        """The fake does what the server has done."""
        failing, self.failing = self.failing, lambda method, after: None
        try:
            yield
        finally:
            self.failing = failing

    # --- judgement ------------------------------------------------------------------------------------------------

    def claim(self, is_so: bool, lane: TopicPartition, otherwise: str) -> None:
        """Fail where it isn't so."""
        if not is_so:
            self.wrong.append(f"{lane}: {otherwise}")
            raise AssertionError(self.wrong[-1])

    def has_lost(self, loss: OverflowLoss, expected: int) -> None:
        """Nobody speaks of a loss where blocks up to `expected` are there, and all keys and contents."""
        lane = loss.lane
        is_so = self._number_there(lane) < expected or lane in self.gone or bool(self._lacks[lane] - {HEADERS})
        self.claim(is_so, lane, f"nothing is lost, but {loss}")
        self.seen["a loss was found"] += 1

    def has_number(self, lane: TopicPartition, number: int) -> None:
        """As many blocks are there, or the number is gone (-1) as it must be."""
        hw = self._number_there(lane)
        self.claim(number == hw or (number == 0 and hw < 0), lane, f"{number} is said to be its number, not {hw}")

    def _number_there(self, lane: TopicPartition) -> int:
        return -1 if lane in self.gone else self.hw.get(lane, -1)

    def has_promoted(
        self, lane: TopicPartition, after: Position, promotion: Promotion, row: Callable[[Held], Any] = tuple
    ) -> None:
        """A promotion has what is held within it, in order, and nothing else.

        After a loss it may have more: what was read ahead before it, and wasn't put back because it is settled.
        """
        after, cursor, struck = max(after, self.settled.get(lane, after)), promotion.cursor, self.struck[lane]
        held = [held for held in self.records[lane] if after < held.position <= cursor and held.offset not in struck]
        passed_over = self._lost[lane] - struck - {one.offset for one in held}
        got = [row(one) for one in promotion.records if one.position > after and one.offset not in passed_over]
        want = list(map(row, held))
        more, less = [one for one in got if one not in want], [one for one in want if one not in got]
        self.claim(got == want, lane, f"from {after} to {cursor} it has not {less}, but {more} (or another order)")
        vacant = promotion.vacant
        missed = [one for one in self.records[lane] if cursor < one.position <= vacant and one.offset not in struck]
        self.claim(not missed, lane, f"from {cursor} to {vacant} nothing is said to be, and {missed} are")
        self.seen["promoted"] += bool(got)

    def has_found(self, lane: TopicPartition, after: Position, found: Mapping[str, Held]) -> None:
        """Claim that each record found is held, has the id, and is beyond `after`."""
        for message_id, held in found.items():
            if held.position > self.settled.get(lane, after):
                is_so = held in self.records[lane] and held.offset not in self.struck[lane]
                self.claim(is_so and held_id(held) == message_id, lane, f"{message_id} isn't {held}")
                self.claim(held.position > after, lane, f"{held} isn't beyond {after}")
            self.seen["found by id"] += 1

    def compare_lane(self, lane: TopicPartition) -> None:
        """Read everything: headers and contents belong together, and they are what is held."""
        if lane in self.gone or CONTENT in self._lacks[lane]:
            return
        keys = LaneKeys(GROUP, lane)
        stored = set(self.server.keys(f"{keys.tag}:[ab]:*"))
        for header in self._headers(lane):
            stored.discard(keys.slot(header).encode())
            self.claim(self.server.hexists(keys.slot(header), header.member), lane, f"nothing belongs to {header}")
        self.claim(not stored or HEADERS in self._lacks[lane], lane, f"no header leads to {stored}")
        reader, cursor = RedisOverflow(self.server, GROUP), EVERYWHERE
        while cursor < END:
            promotion = reader.promote(lane, cursor, END, PAGE, max(self.hw.get(lane, 0), 0))
            self.has_promoted(lane, cursor, promotion)
            cursor = promotion.cursor

    def _headers(self, lane: TopicPartition) -> Iterator[Header]:
        keys = LaneKeys(GROUP, lane)
        for level in overflow_layout.LEVELS:
            for member in self.server.zrange(keys.level(level), 0, -1):
                header = read_header(member, level)
                if header.rows:
                    yield header

    # --- what becomes of the server -------------------------------------------------------------------------------

    def wipe(self) -> None:
        """Everything is gone."""
        for lane in list(self.records):
            self._empty(lane)
        super().wipe()
        self._lacks.clear()
        self.server.flushall()

    def _empty(self, lane: TopicPartition) -> None:
        self._remember(lane)
        self.records[lane] = []
        self.struck[lane].clear()

    def _remember(self, lane: TopicPartition) -> None:
        self._lost[lane].update(held.offset for held in self.records[lane])

    def copy(self) -> Copy:
        """A backup. Only the last one can be restored."""
        copy = super().copy()
        lacks = {lane: set(lacking) for lane, lacking in self._lacks.items()}
        self._copied = copy, {key: self.server.dump(key) for key in self.server.keys("*")}, lacks
        return copy

    def restore(self, copy: Copy) -> None:
        """An older copy of everything; of another cluster's nothing is restored."""
        if not any(copy):
            self.wipe()
            return
        copied, dumps, lacks = self._copied
        assert copy == copied
        super().restore(copy)
        self._lacks.update({lane: set(lacking) for lane, lacking in lacks.items()})
        for key, dump in dumps.items():
            self.server.restore(key, 0, dump)

    def damage(self, lane: TopicPartition, offset: int) -> None:
        """The content of a chunk that may have this record is gone, or it is another; its header stays."""
        position = next(held.position for held in self.records[lane] if held.offset == offset)
        for header in self._headers(lane):
            if header.first <= position <= header.last:
                slot = LaneKeys(GROUP, lane).slot(header)
                if self.rng.random() < 0.5:
                    self.server.hdel(slot, header.member)
                else:
                    self.server.hset(slot, header.member, b"something else")
                self.lost_once.add(lane)
                self._lacks[lane].add(CONTENT)
                return

    def lose_level(self, lane: TopicPartition, from_ms: int) -> None:
        """The key of a level is gone; until it is rebuilt it doesn't matter what was in it."""
        self._remember(lane)
        super().lose_level(lane, from_ms)
        self.server.unlink(LaneKeys(GROUP, lane).level(self.rng.choice(overflow_layout.LEVELS)))
        self._lacks[lane].add(HEADERS)

    def lose_tombstones(self, lane: TopicPartition) -> None:
        """The key is gone that has all that was struck out."""
        super().lose_tombstones(lane)
        self.server.unlink(LaneKeys(GROUP, lane).struck)

    def lose_index(self, lane: TopicPartition) -> None:
        """All shards of the index are gone."""
        super().lose_index(lane)
        self.server.unlink(*LaneKeys(GROUP, lane).shards())
        self._lacks[lane].add(INDEX)


class Connected:
    """One process's `Overflow` and `RebuildStore`: the real ones, whose answers are judged."""

    def __init__(self, store: RealOverflow) -> None:
        client = FailingClient(store.server, store)
        self._store = store
        self._overflow = RedisOverflow(client, GROUP)
        self._rebuild = RedisRebuildStore(client, GROUP)

    def last_applied(self, lane: TopicPartition) -> int:
        """See `Overflow.last_applied`."""
        with self._judged("watermark"):
            number = self._overflow.last_applied(lane)
            self._compare(self._store.has_number, lane, number)
        return number

    def last_applied_of(self, lanes: Sequence[TopicPartition]) -> list[int | OverflowLoss]:
        """See `Overflow.last_applied_of`: one by one, as each answer is judged."""
        return [number_or_loss(self, lane) for lane in lanes]

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """See `Overflow.apply`."""
        first = {change.lane: change.number for change in reversed(changes)}
        with self._judged("apply", lambda lane: first[lane] - 1):
            try:
                self._overflow.apply(changes, now_ms)
            finally:
                self._store.follow_changes(changes, now_ms)

    def promote(
        self, lane: TopicPartition, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> Promotion:
        """See `Overflow.promote`."""
        with self._judged("promote", lambda _: acknowledged):
            promotion = self._overflow.promote(lane, after, until, records_max, acknowledged)
            self._compare(self._store.has_promoted, lane, after, promotion)
        return promotion

    def find(self, lane: TopicPartition, ids: Sequence[str], after: Position, acknowledged: int) -> Mapping[str, Held]:
        """See `Overflow.find`."""
        with self._judged("find", lambda _: acknowledged):
            found = self._overflow.find(lane, ids, after, acknowledged)
            self._compare(self._store.has_found, lane, after, found)
        return found

    def tidy(self, lane: TopicPartition, settled: Position, now_ms: int) -> int:
        """See `Overflow.tidy`."""
        with self._judged("tidy"):
            try:
                left = self._overflow.tidy(lane, settled, now_ms)
            finally:
                self._store.follow_tidying(lane, settled, now_ms)
            self._store.compare_lane(lane)
        return left

    def place(self, lane: TopicPartition) -> int:
        """See `RebuildStore.place`."""
        with self._judged("place"):
            number = self._rebuild.place(lane)
            self._compare(self._store.has_number, lane, number)
        return number

    def reset(self, lane: TopicPartition, begin: bool) -> bool:
        """See `RebuildStore.reset`."""
        with self._judged("reset"):
            try:
                more = self._rebuild.reset(lane, begin)
            finally:
                self._store.follow_reset(lane)
        return more

    def redo(self, lane: TopicPartition, redos: Sequence[Redo], now_ms: int) -> None:
        """See `RebuildStore.redo`."""
        with self._judged("redo", lambda _: redos[0].before):
            try:
                self._rebuild.redo(lane, redos, now_ms)
            finally:
                self._store.follow_redos(lane, redos, now_ms)

    def read(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `RebuildStore.read`."""
        with self._judged("read", lambda _: acknowledged):
            promotion = self._rebuild.read(lane, after, records_max, acknowledged)
            self._compare(self._store.has_promoted, lane, after, promotion)
        return promotion

    def places(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `RebuildStore.places`."""
        with self._judged("places", lambda _: acknowledged):
            promotion = self._rebuild.places(lane, after, records_max, acknowledged)
            self._compare(self._store.has_promoted, lane, after, promotion, place_of)
        return promotion

    @contextmanager
    def _judged(self, method: str, expected: Callable[[TopicPartition], int] = lambda _: 0) -> Iterator[None]:
        """The weather comes before and after; a loss is one: fewer blocks are there than `expected`."""
        self._store.failing(method, False)
        self._store.disturbed = False
        try:
            yield
        except OverflowLoss as loss:
            self._compare(self._store.has_lost, loss, expected(loss.lane))
            raise
        self._store.failing(method, True)

    def _compare(self, judge: Callable[..., None], *answer: Any) -> None:
        if not self._store.disturbed:
            judge(*answer)
