"""Digests of dead letters: whatever happens to the topics between two looks, groups are those of the letters."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sidecar.model.record import Place
from sidecar.operations.dead_letters.browse import Limits, Look, Page
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.groups import counting, digests
from sidecar.operations.dead_letters.groups.counting import GroupCounter
from sidecar.operations.dead_letters.groups.digests import Digests
from sidecar.operations.dead_letters.groups.group import Group
from sidecar.operations.dead_letters.masking import Masking, Search
from tests.unit.letter_world import NOW_MS, MemoryLetterLog, MemoryRedriven, dead

TOPICS = ("a-dlq", "b-dlq")
ERRORS = ("card 1 is void", "card 2 is void", "no answer", "")
POLICIES = ("orders@1", "orders@2", "mail@1")
MUCH = 1_000
partitions = st.integers(0, 1)
topics = st.sampled_from(TOPICS)
selections = st.builds(
    Selection,
    reason=st.sampled_from([None, "expired"]),
    policy=st.sampled_from([None, "orders"]),
    error_class=st.sampled_from([None, "Pay*"]),
    since=st.sampled_from([None, NOW_MS + 2_500]),
    until=st.sampled_from([None, NOW_MS + 4_000]),
)


class ShrinkingLog(MemoryLetterLog):
    """Topics that retention takes letters from."""

    def __init__(self) -> None:
        super().__init__()
        self.lows: Counter[tuple[str, int]] = Counter()
        self.letters_read = 0

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.lows[topic, partition], super().bounds(topic, partition)[1]

    def read(self, topic: str, partition: int, start: int, end: int) -> Any:
        for letters in super().read(topic, partition, start, end):
            self.letters_read += len(letters)
            yield letters

    def all(self, chosen: Sequence[str]) -> list[DeadLetter]:
        """Letters that are there."""
        return [
            letter
            for (topic, partition), letters in sorted(self.partitions.items())
            for letter in letters
            if topic in chosen and letter is not None and letter.place.offset >= self.lows[topic, partition]
        ]


class Looks(RuleBasedStateMachine):
    """Somebody looks at groups while letters come, are sent again, discarded and deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self.redriven, self.digests = ShrinkingLog(), MemoryRedriven(), Digests(Masking(()))
        self.plans = 0
        self.room = digests.LETTERS_MAX

    @initialize(room=st.sampled_from([3, MUCH]))
    def have_room(self, room: int) -> None:
        self.room = room

    @rule(topic=topics, partition=partitions, error=st.sampled_from(ERRORS), policy=st.sampled_from(POLICIES),
          reason=st.sampled_from(["expired", "attempts_exhausted"]))  # fmt: skip
    def die(self, topic: str, partition: int, error: str, policy: str, reason: str) -> None:
        headers = dead(reason, policy, error_message=error, error_class="PaymentError" if "card" in error else "Gone")
        self.log.add(topic, headers, partition=partition)

    @rule(topic=topics, partition=partitions)
    def abort(self, topic: str, partition: int) -> None:
        self.log.partitions.setdefault((topic, partition), []).append(None)

    @rule(topic=topics, partition=partitions, count=st.integers(1, 4))
    def delete(self, topic: str, partition: int, count: int) -> None:
        there = len(self.log.partitions.get((topic, partition), ()))
        self.log.lows[topic, partition] = min(self.log.lows[topic, partition] + count, there)

    @rule(topic=topics, has_id=st.booleans())
    def make_anew(self, topic: str, has_id: bool) -> None:
        kept = 0 if not has_id else 3  # with an id it may have grown as long as it was
        for place in [place for place in self.log.partitions if place[0] == topic]:
            del self.log.partitions[place], self.log.lows[place]
        for _ in range(kept):
            self.die(topic, 0, "no answer", "mail@1", "expired")
        self.plans += 1
        self.redriven.ids[topic] = f"id{self.plans}"

    @rule(data=st.data(), discards=st.booleans())
    def settle(self, data: st.DataObject, discards: bool) -> None:
        letters = self.log.all(TOPICS)
        if letters:
            self.plans += 1
            letter = data.draw(st.sampled_from(letters))
            self.redriven.write(f"plan{self.plans:05d}", [letter.place], NOW_MS + self.plans, discards)

    @rule(
        chosen=st.sampled_from([TOPICS, ("b-dlq",)]), selection=selections, only_open=st.booleans(),
        error=st.sampled_from(["", "CARD"]), records=st.sampled_from([1, 4, MUCH]),
        groups_max=st.sampled_from([1, MUCH]),
    )  # fmt: skip
    def look(
        self, chosen: Sequence[str], selection: Selection, only_open: bool, error: str, records: int, groups_max: int
    ) -> None:
        look = Look(selection, only_open, trend_ms=NOW_MS, search=Search(error=error))
        found = Counter[tuple[str, ...]]()
        start, pages = None, list[Page]()
        while start is not None or not pages:
            groups, page = self.count(chosen, look, start, records, groups_max)
            for group in groups:
                key = (group.topic, group.reason, group.error_class, group.error)
                found[key] += group.count
                found[*key, "redriven"] += group.redriven
                found[*key, "discarded"] += group.discarded
            assert not pages or page.remaining <= pages[-1].remaining
            start = page.following
            pages.append(page)
        assert pages[-1].remaining == 0
        assert +found == self.expected(chosen, look)
        if selection.since is None and not error:
            assert sum(page.scanned for page in pages) == len(self.log.all(chosen))

    @rule()
    def look_twice(self) -> None:
        """Letters that were looked at, and had room, aren't read again."""
        if self.room < MUCH:
            return
        self.count(TOPICS, Look(Selection()), None, MUCH, MUCH)
        read = self.log.letters_read
        groups, _ = self.count(TOPICS, Look(Selection()), None, MUCH, MUCH)
        assert self.log.letters_read == read
        assert sum(group.count for group in groups) == len(self.log.all(TOPICS))

    def count(
        self, chosen: Sequence[str], look: Look, start: Place | None, records: int, groups_max: int
    ) -> tuple[list[Group], Page]:
        limits = digests.LETTERS_MAX, counting.GROUPS_MAX
        digests.LETTERS_MAX, counting.GROUPS_MAX = self.room, groups_max  # type: ignore[misc]
        try:
            fates = self.redriven.fates(chosen)
            return GroupCounter(
                self.log, Limits(records, 60.0), lambda: 0.0, self.digests, fates, lambda *_: None
            ).count(chosen, look, start)
        finally:
            digests.LETTERS_MAX, counting.GROUPS_MAX = limits  # type: ignore[misc]

    def expected(self, chosen: Sequence[str], look: Look) -> Counter[tuple[str, ...]]:
        """Counts of the letters themselves."""
        found, sent_of, masking = Counter[tuple[str, ...]](), self.redriven.of(chosen), Masking(())
        for letter in self.log.all(chosen):
            sent = sent_of(letter.place)
            if not look.selection.fits(letter) or not masking.finds(letter, look.search, False):
                continue
            if look.only_open and sent is not None:
                continue
            key = (letter.place.topic, letter.reason, letter.error_class, masking.group_name(letter))
            found[key] += 1
            if sent is not None:
                found[*key, "discarded" if sent.discarded else "redriven"] += 1
        return found


TestLooks = Looks.TestCase
