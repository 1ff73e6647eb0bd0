"""Receipts: what became of single records, as the ledger of the whole group has it.

The ledger is written by every replica and read here (`ledger_reader.py`), so an API learns what became of a record
whoever owns its partition. What was read last is remembered, as packed as it came: a few bytes for each record.

    wait for one record     outcome(place, timeout): before or after it was settled, it makes no difference
    look an id up           settlements(id), entries(id)

Costs nothing but the decoding of a block while nobody asks: waiting records and ids are looked up in columns.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Final, NamedTuple

from sidecar.ledger.block import Block, decode
from sidecar.lookup.receipt import (
    Entry,
    LedgerPlace,
    Settlement,
    action_offsets,
    entry_rows,
    receipt_row,
    row_of,
    settled_row,
    settled_rows,
)
from sidecar.model.log_cuts import NO_CUTS, Cuts
from sidecar.model.record import Place, TopicPartition

BLOCK_BYTES: Final = 400  # what a remembered block takes beside its own bytes
ID_BYTES: Final = 200  # what one of its ids takes beside its text
RECENT_BLOCKS: Final = 16  # of a lane: how far back a record is looked for that nobody waited for when it was settled
WAITING_MAX: Final = 10_000


class ReceiptsUnavailable(Exception):
    """The ledger can't be read for now; the text says why. What was asked for may well have happened."""


class TooManyWaiting(Exception):
    """The limit of requests that wait for a receipt is reached: no more are taken."""


class _Kept(NamedTuple):
    """One block as it came."""

    lane: TopicPartition
    ledger: LedgerPlace
    data: bytes
    ids: tuple[str, ...]  # of settled records and entries
    actions: tuple[int, ...]  # offsets of records that were settled by an action
    first: int  # lowest and highest settled offset; 0 and -1: none
    last: int

    @property
    def size(self) -> int:
        return BLOCK_BYTES + len(self.data) + sum(map(len, self.ids)) + ID_BYTES * (len(self.ids) + len(self.actions))


class Receipts:
    """Latest blocks of the ledger, `bytes_max` bytes at most. For any thread; `add` and `trouble` are the reader's."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._blocks: deque[_Kept] = deque()
        self._by_lane: dict[TopicPartition, deque[_Kept]] = {}
        self._by_id: dict[str, list[_Kept]] = {}
        self._by_action: dict[Place, _Kept] = {}
        self._cuts: dict[TopicPartition, Cuts] = {}  # of those whose log was cut back, as their last block says
        self._waiting: dict[TopicPartition, dict[int, list[Future[Settlement]]]] = {}
        self._waiting_count = 0
        self._awaited = threading.Event()  # somebody waits, or nobody may any more
        self._trouble = "the ledger was not read yet"
        self._ended = False

    # --- for those who ask ----------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why nothing new is heard of; empty while all is well."""
        return self._trouble

    async def outcome(self, place: Place, timeout_s: float) -> Settlement | None:
        """How the record at `place` was settled, as soon as the ledger says so; None when it did not in time.

        The place is the one in its topic, as its producer is told. All others here are the lane's own
        (`sidecar/model/log_cuts.py`).
        May be called before or after it was settled, from any event loop. A caller that goes away takes its place in
        the queue with it. Raises ReceiptsUnavailable while the ledger isn't read, TooManyWaiting.
        """
        waiting = self._wait_for(place)
        if isinstance(waiting, Settlement):
            return waiting
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiting), timeout_s)
        except TimeoutError:
            return None
        finally:
            self._forget(place, waiting)

    def outcomes(self, places: Sequence[tuple[str, int, int]], timeout_s: float) -> list[Settlement | None]:
        """As `outcome` for many records, for a thread that may block; None: not in time, or not to be heard of now."""
        waiting: dict[Place, Settlement | Future[Settlement] | None] = {}
        try:
            for place in (Place(*place) for place in places):
                try:
                    waiting[place] = self._wait_for(place)
                except (ReceiptsUnavailable, TooManyWaiting):
                    waiting[place] = None
            wait([one for one in waiting.values() if isinstance(one, Future)], timeout_s)
            return [_answer_of(waiting[Place(*place)]) for place in places]
        finally:
            for place, one in waiting.items():
                if isinstance(one, Future):
                    self._forget(place, one)

    def own(self, place: Place) -> Place:
        """A place in its topic, as the lane counts."""
        return place._replace(offset=self._own(TopicPartition(place.topic, place.partition), place.offset))

    def line(self, place: tuple[str, int, int]) -> Settlement | None:
        """How this record was settled, as far as that is remembered."""
        return self.settlement(Place(*place))

    def settlement(self, place: Place) -> Settlement | None:
        """How the record at `place` was settled, as far as that is remembered."""
        with self._lock:
            return self._find(place)

    def search(self, place: Place) -> Settlement | None:
        """The last settlement of the record at `place` in all blocks that are remembered; where it was moved, of what
        goes on for it. Decodes many blocks: for a thread that may take its time.
        """
        own = self.own(place)
        with self._lock:
            remembered = list(self._by_lane.get(TopicPartition(own.topic, own.partition), ()))
        found: Settlement | None = None
        offset = own.offset
        for kept in remembered:  # oldest first: a move comes before what became of it, in its block or in a later one
            if not kept.first <= offset <= kept.last:
                continue
            block = decode(kept.data)
            while (row := row_of(block, offset)) >= 0:
                found = settled_row(kept.ledger, block, row)
                if not found.is_move or found.related <= offset:  # a control record comes behind what it moves
                    break
                offset = found.related
        return found

    def settlements(self, id: str) -> list[Settlement]:
        """The remembered settlements of records with this id, oldest first."""
        return [row for kept, block in self._with_id(id) for row in settled_rows(kept.ledger, block, id)]

    def entries(self, id: str) -> list[Entry]:
        """The remembered moves of records with this id to the overflow, oldest first."""
        return [row for kept, block in self._with_id(id) for row in entry_rows(kept.ledger, block, id)]

    # --- for the reader -------------------------------------------------------------------------------------------

    def add(self, ledger: LedgerPlace, data: bytes) -> None:
        """Remember a block, answer those who wait for its records, forget the oldest blocks. Raises
        LedgerFormatError for what is no block."""
        block = decode(data)
        lane = TopicPartition(block.topic, block.partition)
        settled = block.settled
        ids = tuple(dict.fromkeys((*settled.ids.values(), *block.entries.ids.values())))
        actions = action_offsets(block)
        ends = (settled.offsets[0], settled.offsets[-1]) if settled.offsets else (0, -1)
        kept = _Kept(lane, ledger, data, ids, actions, *ends)
        with self._lock:
            if block.cuts or lane in self._cuts:
                self._cuts[lane] = block.cuts
            if not ids and ends == (0, -1):
                return  # nothing that anybody could ask for
            self._keep(kept)
            answered = self._answers(kept, block)
        for future, settlement in answered:
            if future.set_running_or_notify_cancel():
                future.set_result(settlement)

    def note_trouble(self, trouble: str) -> None:
        """Why the ledger can't be read for now; empty: it can."""
        self._trouble = trouble

    def rest(self, seconds: float) -> None:
        """Let so much time pass, but none while somebody waits for a receipt."""
        with self._lock:
            if not self._waiting_count and not self._ended:
                self._awaited.clear()
        self._awaited.wait(seconds)

    def end(self) -> None:
        """Nothing will be read any more: whoever waits hears of it now. Twice is harmless."""
        with self._lock:
            self._ended = True
            self._awaited.set()
            self._trouble = self._trouble or "the process is ending"
            left = [future for lane in self._waiting.values() for futures in lane.values() for future in futures]
            self._waiting.clear()
            self._waiting_count = 0
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(ReceiptsUnavailable(self._trouble))

    # --- waiting --------------------------------------------------------------------------------------------------

    def _wait_for(self, place: Place) -> "Settlement | Future[Settlement]":
        lane, offset = TopicPartition(place.topic, place.partition), place.offset
        with self._lock:
            if (found := self._find(self.own(place))) is not None:
                return found
            if self._trouble or self._ended:
                raise ReceiptsUnavailable(self._trouble)
            if self._waiting_count >= WAITING_MAX:
                raise TooManyWaiting(f"{WAITING_MAX} requests wait for receipts already")
            future: Future[Settlement] = Future()
            self._waiting.setdefault(lane, {}).setdefault(offset, []).append(future)
            self._waiting_count += 1
            self._awaited.set()
            return future

    def _forget(self, place: Place, future: "Future[Settlement]") -> None:
        """Drop a future that nobody waits for any more, with an answer or without."""
        lane, offset = TopicPartition(place.topic, place.partition), place.offset
        with self._lock:
            futures = self._waiting.get(lane, {}).get(offset, [])
            if future in futures:
                futures.remove(future)
                self._waiting_count -= 1
            if not futures and lane in self._waiting:
                self._waiting[lane].pop(offset, None)
                if not self._waiting[lane]:
                    del self._waiting[lane]

    def _answers(self, kept: _Kept, block: Block) -> "list[tuple[Future[Settlement], Settlement]]":
        wanted = self._waiting.get(kept.lane)
        if not wanted or not block.settled.offsets:
            return []
        answered = []
        last = max(kept.last, *kept.actions) if kept.actions else kept.last
        for offset in [offset for offset in wanted if kept.first <= self._own(kept.lane, offset) <= last]:
            settlement = receipt_row(kept.ledger, block, self._own(kept.lane, offset))
            if settlement is not None:
                futures = wanted.pop(offset)
                self._waiting_count -= len(futures)
                answered += [(future, settlement) for future in futures]
        return answered

    def _own(self, lane: TopicPartition, log_offset: int) -> int:
        return self._cuts.get(lane, NO_CUTS).lane_offset(log_offset)

    # --- remembering ----------------------------------------------------------------------------------------------

    def _keep(self, kept: _Kept) -> None:
        self._blocks.append(kept)
        self._bytes += kept.size
        self._by_lane.setdefault(kept.lane, deque()).append(kept)
        for id in kept.ids:
            self._by_id.setdefault(id, []).append(kept)
        for offset in kept.actions:
            self._by_action[Place(*kept.lane, offset)] = kept
        while self._bytes > self._bytes_max and self._blocks:
            self._drop(self._blocks.popleft())

    def _drop(self, oldest: _Kept) -> None:
        self._bytes -= oldest.size
        of_lane = self._by_lane[oldest.lane]
        of_lane.popleft()
        if not of_lane:
            del self._by_lane[oldest.lane]
        for id in oldest.ids:
            of_id = self._by_id[id]
            of_id.pop(0)  # blocks go in the order in which they came
            if not of_id:
                del self._by_id[id]
        for offset in oldest.actions:
            place = Place(*oldest.lane, offset)
            if self._by_action.get(place) is oldest:
                del self._by_action[place]

    def _find(self, place: Place) -> Settlement | None:
        for kept in self._candidates(place):
            block = decode(kept.data)
            if (settlement := receipt_row(kept.ledger, block, place.offset)) is not None:
                return settlement
        return None

    def _candidates(self, place: Place) -> Iterator[_Kept]:
        if (by_action := self._by_action.get(place)) is not None:
            yield by_action
            return
        of_lane = self._by_lane.get(TopicPartition(place.topic, place.partition), ())
        for _, kept in zip(range(RECENT_BLOCKS), reversed(of_lane), strict=False):
            if kept.first <= place.offset <= kept.last:
                yield kept

    def _with_id(self, id: str) -> Iterator[tuple[_Kept, Block]]:
        with self._lock:
            found = list(self._by_id.get(id, ()))
        for kept in found:
            yield kept, decode(kept.data)


def _answer_of(waiting: "Settlement | Future[Settlement] | None") -> Settlement | None:
    if not isinstance(waiting, Future):
        return waiting
    return waiting.result() if waiting.done() and waiting.exception() is None else None
