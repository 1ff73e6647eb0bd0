"""The topic of redriven letters: read by every replica, written in the transactions that send the letters."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from sidecar.kafka.topic_follower import PARTITION, LogUnavailable, TopicFollower, TopicReader
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Block, Fates, Kept, Marks, Sent, block_of
from sidecar.operations.dead_letters.browse import Find
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.groups.notes import NOTES_MAX, GroupNote, GroupNotes, key_of
from sidecar.operations.jobs.log_writer import LogWriter
from sidecar.operations.jobs.transactional_sender import OutgoingRecord

STALE_MAX: Final = 1_000  # records about letters that are no more, ended by one plan
GAP_MAX: Final = 1_000  # offsets without a letter between two letters; more are left as they are
GAPS_MAX: Final = 20_000  # of them until something is written

Ids = Callable[[Collection[str]], Mapping[str, str]]


class TooManyNotes(Exception):
    """No more groups can have words."""


class RedrivenLog:
    """Follows the topic; for any thread. `ids`: as `TopicIds.of`.

    What was sent is known from its commit on. No two plans send a letter at the same moment: they take turns
    (`redrive_plan.py`).
    """

    def __init__(self, reader: TopicReader, topic: str, ids: Ids) -> None:
        self.topic = topic
        self._ids = ids
        self._marks = Marks()
        self._notes = GroupNotes()
        self._follower = TopicFollower(reader, topic, self._take_in)
        self._changed = self._follower.changed
        self._writer = LogWriter(reader.client, topic, self._follower.wait_for)
        self._is_read = False
        self.start = self._follower.start
        self.stop = self._follower.stop
        self.take = self._follower.take

    def catch_up(self) -> None:
        """Wait until all that was committed is known. Raises LettersUnavailable."""
        try:
            self._follower.catch_up()
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None
        self._is_read = True

    def of(self, topics: Sequence[str]) -> Find:
        """Asks about letters of these topics; from the topic's end of now on, once. Raises LettersUnavailable."""
        if not self._is_read:
            self.catch_up()
        ids = self._ids_of(topics)
        return lambda place: self.find(ids.get(place.topic, ""), place)

    def fates(self, topics: Sequence[str]) -> dict[str, Fates]:
        """Letters that were sent again or discarded, by topic, of those that are there. Raises LettersUnavailable."""
        if not self._is_read:
            self.catch_up()
        ids = self._ids_of(topics)
        with self._changed:
            return {topic: self._marks.fates(topic_id, topic) for topic, topic_id in ids.items()}

    def pen(self, plan_id: str, topic: str, topic_id: str = "", discards: bool = False) -> "PlanMarks":
        """Marks of a plan, to ask and write: all that was sent up to now is known. Without `topic_id` it is asked for.

        Raises LettersUnavailable, also while nobody knows which topic it is: under no id or another one the next plan
        would not find what this one sends.
        """
        self.catch_up()
        known = topic_id or self._ids_of([topic]).get(topic)
        if known is None:
            raise LettersUnavailable(f"no broker knows the topic {topic}")
        return PlanMarks(self, plan_id, topic, known, discards)

    def find(self, topic_id: str, place: Place) -> Sent | None:
        """Plan that sent or discarded this letter last, and its times; None: the letter is open."""
        with self._changed:
            return self._marks.find(topic_id, place)

    def open(self, bounds: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[str, int]:
        """By topic: how many letters no plan has sent or discarded, at most. `bounds` are the first offset and the end
        of each partition. An offset without a letter counts until a plan has passed it. Raises LettersUnavailable.
        """
        if not self._is_read:
            self.catch_up()
        ids = self._ids_of(list(bounds))
        offsets = {topic: sum(end - start for start, end in spans.values()) for topic, spans in bounds.items()}
        with self._changed:
            sent = {
                topic: self._marks.count(ids.get(topic, ""), topic, {p: start for p, (start, _) in spans.items()})
                for topic, spans in bounds.items()
            }
        return {topic: max(offsets[topic] - sent[topic], 0) for topic in bounds}

    def note_of(self, topic: str, fingerprint: str) -> GroupNote | None:
        """Words of people about a group of failures."""
        with self._changed:
            return self._notes.find(topic, fingerprint)

    def say(self, topic: str, fingerprint: str, note: GroupNote) -> None:
        """Write words about a group, in place of those of before. Raises TooManyNotes and LettersUnavailable."""
        with self._changed:
            has_room = self._notes.has_room(topic, fingerprint)
        if not has_room and not note.says_nothing:
            raise TooManyNotes(f"There are words about {NOTES_MAX} groups: make some of them new without a note.")
        value = None if note.says_nothing else note.model_dump_json().encode()
        try:
            self._writer.write(key_of(topic, fingerprint), value)
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None

    def kept(self, block: Block, plan: str) -> Kept | None:
        """Letters of a block that a plan has sent; None: no record says so."""
        with self._changed:
            return self._marks.kept(block, plan)

    def stale(self, topic_id: str, topic: str, starts: Mapping[int, int]) -> list[bytes]:
        """Keys of records about letters that are no more, not all at once."""
        with self._changed:
            return list(islice(self._marks.stale(topic_id, topic, starts), STALE_MAX))

    def _ids_of(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Raises LettersUnavailable, also when a topic of which an id is known has none: that is no answer."""
        try:
            ids = self._ids(topics)
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None
        with self._changed:
            silent = [topic for topic, topic_id in ids.items() if not topic_id and self._marks.has_id(topic)]
        if silent:
            raise LettersUnavailable(f"no answer about the ids of topics: {', '.join(silent)}")
        return ids

    def _take_in(self, key: bytes, value: bytes, _appended_ms: int) -> None:
        self._marks.apply(key, value)
        self._notes.apply(key, value)


class PlanMarks:
    """The records of one plan. Its owner alone writes them, and knows them before they are read back."""

    def __init__(self, log: RedrivenLog, plan_id: str, topic: str, topic_id: str, discards: bool) -> None:
        self._log = log
        self._plan = plan_id
        self._topic = topic
        self._id = topic_id
        self._discards = discards
        self._own: dict[Block, Kept] = {}
        self._going: dict[Block, Kept] = {}
        self._gaps: list[Place] = []

    def sent(self, place: Place) -> Sent | None:
        """By which plan it was sent or discarded; None: it is open."""
        return self._log.find(self._id, place)

    def note_gap(self, partition: int, start: int, end: int) -> None:
        """There is no letter from `start` to before `end`, but marks of transactions and what was aborted. Noted with
        the letters beside them, else nobody could say without reading how many are open.
        """
        if end - start <= GAP_MAX and len(self._gaps) < GAPS_MAX:
            self._gaps += [Place(self._topic, partition, offset) for offset in range(start, end)]

    def records(self, places: Sequence[Place], now_ms: int) -> list[OutgoingRecord]:
        """The records of these letters, and of the gaps noted, to be written in the transaction that sends them."""
        offsets: dict[Block, list[int]] = {}
        for place in (*places, *self._gaps):
            offsets.setdefault(block_of(self._id, place), []).append(place.offset)
        self._going = {block: self._before(block, now_ms).plus(found, now_ms) for block, found in offsets.items()}
        return [self._record(block.key(self._plan), kept.value()) for block, kept in self._going.items()]

    def written(self) -> None:
        """The last `records` are facts."""
        self._own |= self._going
        self._gaps.clear()

    def stale(self, starts: Mapping[int, int]) -> list[OutgoingRecord]:
        """Records that end others: their letters are no more. `starts`: the first offset by partition."""
        return [self._record(key, None) for key in self._log.stale(self._id, self._topic, starts)]

    def _before(self, block: Block, now_ms: int) -> Kept:
        return self._own.get(block) or self._log.kept(block, self._plan) or Kept(0, now_ms, now_ms, self._discards)

    def _record(self, key: bytes, value: bytes | None) -> OutgoingRecord:
        return OutgoingRecord(self._log.topic, key, value, partition=PARTITION)
