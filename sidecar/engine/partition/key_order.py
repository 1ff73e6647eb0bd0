"""Order by key in one lane: which keys have a record waiting, and what of them has fired and isn't settled.

Two rules keep the order; `engine/intake/key_order.py` applies the first, `engine/emission/queues.py` the second:

    held     never due before the record of the same key that was held before it ("parked" behind it)
    fired    while a record of a key is handed over and not settled, later ones of that key wait

The first lets a parked record lie anywhere, in Redis for days if need be, and still come out behind the one before.
The second holds even if a transaction is aborted, or a record is tried again or leaves another way.

Memory: a key's last place, as long as something of that key is held. No clock, no client: the engine's thread owns it.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position


class Tail(NamedTuple):
    """The last record of a key that was held, by position."""

    due_ms: int
    offset: int
    stored: bool  # it, or one before it, went to the overflow

    def ahead_of(self, cursor: Position) -> bool:
        """The overflow may have something of this key that isn't in the wheel yet."""
        return self.stored and (self.due_ms, self.offset) > cursor


class Chain:
    """Records of one key that have fired and aren't settled: `out` counts those handed over, `waiting` follow,
    sorted by position.
    """

    __slots__ = ("out", "single", "waiting")

    def __init__(self) -> None:
        self.out = 0
        self.single = False  # something came back: one at a time until all have left
        self.waiting: deque[Held] = deque()

    def add(self, held: Held) -> None:
        """Insert a record by position: usually at the end, and near the beginning if it came back."""
        waiting = self.waiting
        if not waiting or waiting[-1].position < held.position:
            waiting.append(held)
        else:
            waiting.insert(next(place for place, other in enumerate(waiting) if held.position < other.position), held)


def add_before(known: list[tuple[int, int]], offset: int, due_ms: int) -> None:
    """(offset, latest due up to it), sorted: almost always the new one is the last."""
    place = bisect_left(known, (offset, -1))
    latest_ms = max(due_ms, known[place - 1][1]) if place else due_ms
    known.insert(place, (offset, latest_ms))
    for later in range(place + 1, len(known)):
        if known[later][1] >= latest_ms:
            break
        known[later] = (known[later][0], latest_ms)


def remove_before(known: list[tuple[int, int]], offset: int) -> None:
    """Take out what `add_before` put in; the latest due of later ones stays."""
    place = bisect_left(known, (offset, -1))
    if place < len(known) and known[place][0] == offset:
        del known[place]


SECOND_MS: Final = 1_000

Key = int  # hash of policy name and record key


class Order:
    """See the module. `key_of(held)` is None for records that need no order."""

    def __init__(self, key_of: Callable[[Held], Key | None]) -> None:
        self.key_of = key_of
        self.names: frozenset[str] = frozenset()  # of policies whose held records are known
        self.sought: frozenset[str] = frozenset()  # those of them whose records in the overflow aren't known yet
        self.queue: deque[Any] = deque()  # what was read and has to wait, in the order of the offsets
        self.on_the_way: set[int] = set()  # ordered records on their way to the overflow
        self.unplaced: dict[Key, int] = {}  # offset of the record that waits for something else before it is held
        self.refused: dict[Key, set[int]] = {}  # offsets of those that were not let in and haven't left yet
        self._refused_at: dict[int, Key] = {}
        self._waiting_for_place: dict[int, Key] = {}
        self._blocked: dict[Key, set[Position]] = {}  # the overflow has records there, to come before some in the wheel
        self._expected: set[int] = set()  # offsets of these, until they have fired or left
        self.chains: dict[Key, Chain] = {}
        self.free: dict[Key, None] = {}  # keys with something waiting and nothing out
        self.isolated: set[int] = set()  # of what waits: to be sent in batches of their own
        self._tails: dict[Key, Tail] = {}
        self._last: dict[int, Key] = {}  # offsets of these, until they are settled
        self._left: set[Key] = set()  # whose last record was struck
        # (offset, latest due up to it), while records that are read again may come between; None: no more do.
        self._before: dict[Key, list[tuple[int, int]]] | None = {}
        self._forgotten_second = -1  # in which the places of struck records were looked through
        self._out: dict[int, Key] = {}
        self._returning: dict[int, Key] = {}  # read again after a crash, and in the wheel
        self._returning_of: dict[Key, set[int]] = {}
        self._parked: Counter[int] = Counter()  # by second of their due time
        self._seconds: list[int] = []  # a heap of these
        self._parked_total = 0
        self.fired_waiting = 0  # how many have fired and are not handed over
        self._held_back: set[Key] = set()  # keys of which the record that is out waits for the end of a pause

    # --- held -----------------------------------------------------------------------------------------------------

    def before(self, key: Key, offset: int) -> Tail | None:
        """The record of this key that the one at `offset` must not overtake; None: there is none."""
        tail = self._tails.get(key)
        if tail is None or tail.offset < offset:
            return tail
        known = self._before.get(key, []) if self._before is not None else []
        place = bisect_left(known, (offset, -1))
        if not place:
            return None
        return Tail(known[place - 1][1], known[place - 1][0], tail.stored)

    def note(self, key: Key, held: Held, stored: bool, cursor: Position) -> None:
        """Note that a record is held, in the wheel or `stored`: on its way to the overflow, or there."""
        tail = self._tails.get(key)
        stored = stored or (tail is not None and tail.ahead_of(cursor))
        if tail is None or (held.due_ms, held.offset) > (tail.due_ms, tail.offset):
            self._tails[key] = Tail(held.due_ms, held.offset, stored)
            self._left.discard(key)
            self._last[held.offset] = key
            if tail is not None:
                self._last.pop(tail.offset, None)
        elif stored != tail.stored:
            self._tails[key] = tail._replace(stored=True)
        if self._before is not None:
            add_before(self._before.setdefault(key, []), held.offset, held.due_ms)

    def found(self, records: Iterable[Held], stored: bool, cursor: Position) -> None:
        """The overflow has these, or they are just promoted: while it is looked at, they take their places."""
        for held in records if self.sought else ():
            if held.source >= 0 or held.policy.rpartition("@")[0] not in self.sought:
                continue
            if (key := self.key_of(held)) is not None:
                if self.before(key, OFFSET_MAX) is not None:
                    self.park(held.due_ms)
                self.note(key, held, stored, cursor)

    def returns(self, key: Key, offset: int) -> None:
        """A record that was read before a crash is on its way to the wheel again: later ones may have fired already."""
        self._returning[offset] = key
        self._returning_of.setdefault(key, set()).add(offset)

    def returned(self, offset: int) -> None:
        """Forget a record that `returns` noted: it has fired, or it fires some other time, or never."""
        key = self._returning.pop(offset, None)
        if key is not None:
            self._returning_of[key].discard(offset)
            if not self._returning_of[key]:
                del self._returning_of[key]

    def must_wait(self, key: Key, offset: int, read_to: int, cursor: Position) -> bool:
        """Whether a fired record has to wait because one before it isn't read again yet, hasn't fired again, or hasn't
        come from the overflow.
        """
        if key in self._blocked:
            still = {one for one in self._blocked.pop(key) if one > cursor or one.offset in self._expected}
            if still:
                self._blocked[key] = still
            if any(offset > block.offset for block in still):
                return True
        reached = self.queue[0].offset if self.queue else read_to
        earlier = self._returning_of.get(key)
        return offset >= reached or (earlier is not None and min(earlier) < offset)

    def block(self, key: Key, by: Tail) -> None:
        """Keep the wheel's records of this key from firing before `by`, which the overflow has."""
        self._blocked.setdefault(key, set()).add(Position(by.due_ms, by.offset))
        if key not in self._left:
            self._expected.add(by.offset)

    def wait_for_place(self, key: Key, offset: int) -> None:
        """A record waits for something before it is held: later ones of its key wait, too."""
        self.unplaced[key] = offset
        self._waiting_for_place[offset] = key

    def placed(self, offset: int) -> None:
        """Forget that a record waits for its place: it is held, or has left, whether or not it is ordered still."""
        key = self._waiting_for_place.pop(offset, None)
        if key is not None and self.unplaced.get(key) == offset:
            del self.unplaced[key]

    def refuse(self, key: Key, offset: int) -> None:
        """A record leaves in place of being held. Until it has, a crash may undo that: later ones of its key wait."""
        self.refused.setdefault(key, set()).add(offset)
        self._refused_at[offset] = key

    def redone(self, held: Held) -> None:
        """A change block that the overflow hasn't has this record again."""
        key = self.key_of(held)
        if key is not None and held.source < 0:  # who was moved goes its own way
            self.on_the_way.add(held.offset)
            self.note(key, held, True, held.position)

    def all_read_again(self, until: int) -> None:
        """Note that all records up to this offset, read before a crash, are read again: records come behind all that
        are known from now on, unless one of those still waits for its place.
        """
        if self._before is not None and not any(offset < until for offset in self._waiting_for_place):
            self._before = None

    def struck(self, held: Held) -> None:
        """A held record was cancelled, replaced or moved. If it was the last of its key, its place is kept until
        it would have been due: others may still come before it.
        """
        self._unpark(held)
        self._expected.discard(held.offset)
        if self._before is not None and (its_key := self.key_of(held)) is not None:
            remove_before(self._before.get(its_key, []), held.offset)
        key = self._last.pop(held.offset, None)
        if key is not None:
            self._left.add(key)

    def forget_left(self, fired_ms: int, cursor: Position) -> None:
        """Forget the places of records that were struck, once all before them have fired. It looks once a second."""
        second = fired_ms // SECOND_MS
        if second == self._forgotten_second:
            return
        self._forgotten_second = second
        for key in list(self._left):
            tail = self._tails[key]
            if tail.due_ms < fired_ms and not tail.ahead_of(cursor) and key not in self.chains:
                self._left.discard(key)
                del self._tails[key]

    # --- parked ---------------------------------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """Records that wait behind another of their key."""
        return self._parked_total + self.fired_waiting

    def park(self, due_ms: int) -> None:
        """Count a record that is held behind another of its key, by the second in which it is due."""
        second = due_ms // SECOND_MS
        if second not in self._parked:
            heappush(self._seconds, second)
        self._parked[second] += 1
        self._parked_total += 1

    def _unpark(self, held: Held) -> None:
        second = held.due_ms // SECOND_MS
        if self._parked.get(second, 0) > 0 and self.key_of(held) is not None:
            self._parked[second] -= 1
            self._parked_total -= 1

    def pass_time(self, now_ms: int) -> None:
        """Stop counting records as parked once they are due, but for what the chains have."""
        second = now_ms // SECOND_MS
        while self._seconds and self._seconds[0] < second:
            self._parked_total -= self._parked.pop(heappop(self._seconds), 0)

    # --- fired ----------------------------------------------------------------------------------------------------

    def fired(self, records: Sequence[Held]) -> tuple[list[Held], list[Held]]:
        """Take in what the wheel gives; returns what needs no order, and what was taken."""
        plain: list[Held] = []
        taken: list[Held] = []
        for held in records:
            key = self.key_of(held)
            if key is None:
                plain.append(held)
            else:
                taken.append(held)
                self.returned(held.offset)
                self._expected.discard(held.offset)
                self._wait(key, held)
        return plain, taken

    def _wait(self, key: Key, held: Held) -> None:
        chain = self.chains.setdefault(key, Chain())
        chain.add(held)
        self.fired_waiting += 1
        if not chain.out:
            self.free[key] = None

    def handed_over(self, key: Key) -> None:
        """The first of those that wait is out."""
        chain = self.chains[key]
        held = chain.waiting.popleft()
        chain.out += 1
        self.fired_waiting -= 1
        self._out[held.offset] = key
        self.isolated.discard(held.offset)
        self.free.pop(key, None)

    def came_back(self, held: Held, single: bool, isolated: bool) -> bool:
        """A record that was out is to be handed over again, perhaps `isolated`; False: it isn't one of these.

        `single`: the records of its key go one at a time from now on, until none waits.
        """
        key = self._out.pop(held.offset, None)
        if key is None:
            return False
        chain = self.chains[key]
        chain.out -= 1
        chain.single = single
        if isolated:
            self.isolated.add(held.offset)
        self._wait(key, held)
        return True

    def held_back(self, records: Iterable[Held]) -> None:
        """Records that were handed over wait for the end of a pause: what follows them is late by intent, too."""
        self._held_back.update(self._out[held.offset] for held in records if held.offset in self._out)

    def no_longer_held_back(self, records: Iterable[Held]) -> None:
        """Records wait for no pause any more."""
        self._held_back.difference_update(self._out[held.offset] for held in records if held.offset in self._out)

    def settled(self, offsets: Iterable[int]) -> None:
        """Forget records that have left for good."""
        self.on_the_way.difference_update(offsets)
        self._expected.difference_update(offsets)
        if self._returning:
            for offset in offsets:
                self.returned(offset)
        for offset in self._refused_at.keys() & offsets if self._refused_at else ():
            key_of_refused = self._refused_at.pop(offset)
            self.refused[key_of_refused].discard(offset)
            if not self.refused[key_of_refused]:
                del self.refused[key_of_refused]
        for offset in offsets:
            key = self._last.pop(offset, None)
            if key is not None:  # it came in its order: nothing of its key is held any more
                del self._tails[key]
            key = self._out.pop(offset, None)
            if key is not None:
                chain = self.chains[key]
                chain.out -= 1
                if chain.out == 0 and chain.waiting:
                    self.free[key] = None
                elif chain.out == 0:
                    del self.chains[key]

    @property
    def waiting(self) -> list[Held]:
        """Records that have fired and are not handed over."""
        return [held for chain in self.chains.values() for held in chain.waiting]

    @property
    def is_restless(self) -> bool:
        """Whether it is to be looked at each turn, until what it waits for has come or its time has passed."""
        return bool(self.queue or self.sought or self._left or self._before is not None)

    def oldest_due_ms(self) -> int:
        """Due time of what has waited longest of it, -1 when none waits."""
        return min((chain.waiting[0].due_ms for chain in self.chains.values() if chain.waiting), default=-1)

    def oldest_overdue_ms(self) -> int:
        """Due time of what has waited longest but for a pause, -1 when nothing has: what follows a record that waits
        for a pause is late by intent, too.
        """
        waiting = (chain for key, chain in self.chains.items() if chain.waiting and key not in self._held_back)
        return min((chain.waiting[0].due_ms for chain in waiting), default=-1)

    def clear_waiting(self) -> None:
        """The lane is given up: whoever has it next reads these again."""
        for chain in self.chains.values():
            chain.waiting.clear()
        self.free.clear()
        self._held_back.clear()
        self.fired_waiting = 0
