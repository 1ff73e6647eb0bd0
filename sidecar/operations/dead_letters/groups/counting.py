"""Groups of the letters that one page looks at: by digests where there are some, else from Kafka, a bounded piece."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from sidecar.model.record import Place
from sidecar.model.redrive_marks import Fates
from sidecar.operations.dead_letters.browse import Limits, Look, Page, Span, spans_of
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.groups.digests import Digests, Kind, PartitionDigests, Run
from sidecar.operations.dead_letters.groups.group import Frame, Group
from sidecar.operations.dead_letters.groups.notes import GroupNote

GROUPS_MAX: Final = 1_000
NO_FATES: Final = Fates("", {})

NoteOf = Callable[[str, str], GroupNote | None]  # what people have said of a topic's fingerprint


class GroupCounter:
    """Counts letters of one `LetterLog`. Time is an argument: monotonic seconds. `fates`: what became of them."""

    def __init__(
        self,
        log: LetterLog,
        limits: Limits,
        monotonic_s: Callable[[], float],
        digests: Digests,
        fates: Mapping[str, Fates],
        notes: NoteOf,
    ) -> None:
        self._log = log
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._digests = digests
        self._fates = fates
        self._notes = notes

    def count(self, topics: Sequence[str], look: Look, start: Place | None) -> tuple[list[Group], Page]:
        """Groups of letters from `start` on, most frequent first, and the page's account. Its limit of records counts
        those that are read from Kafka. Raises LettersUnavailable.
        """
        deadline_s, read_max = self._monotonic_s() + self._limits.seconds, self._limits.records
        if look.read_max is not None:
            read_max = min(look.read_max, read_max)
        partitions = self._log.topics()
        self._digests.forget_others(partitions)
        spans = spans_of(self._log, partitions, topics, look.selection, start)
        page, groups, read = Page(remaining=sum(span.end - span.begin for span in spans)), Groups(look, self._notes), 0
        for span in spans:
            position = span.begin
            for run, letters in self._runs(span, look):
                number = groups.add(span, run, self._fates.get(span.topic, NO_FATES))
                is_whole = number == len(run.offsets)
                end = run.end if is_whole else run.offsets[number - 1] + 1
                page.scanned += letters if letters and is_whole else number
                page.remaining -= end - position
                position, read = end, read + letters
                page.following = Place(span.topic, span.partition, position) if page.remaining else None
                if groups.is_full or read >= read_max or self._monotonic_s() > deadline_s:
                    return groups.sorted(), page
        return groups.sorted(), page

    def _runs(self, span: Span, look: Look) -> Iterator[tuple[Run, int]]:
        """Digests of the letters of a span, in order and to its end, and how many were read from Kafka for them."""
        if any(look.search):  # for words, of which digests have none
            yield from self._found(span, look)
            return
        topic_id = self._fates.get(span.topic, NO_FATES).topic_id
        digests = self._digests.of(span.topic, span.partition, topic_id, span.low, span.end)
        position = span.begin
        while (run := digests.run(position, span.end)) is not None:
            yield run, 0
            position = run.end
        if position == span.end:
            return
        for letters in self._log.read(span.topic, span.partition, position, span.end):
            if letters:
                end = letters[-1].place.offset + 1
                yield self._digests.keep(digests, position, letters, end), len(letters)
                position = end
        if position < span.end:  # behind the last letter there is none
            yield self._digests.keep(digests, position, (), span.end), 0

    def _found(self, span: Span, look: Look) -> Iterator[tuple[Run, int]]:
        """Digests of those letters of a span that have the words."""
        found, masking = PartitionDigests("", span.begin), self._digests.masking
        for letters in self._log.read(span.topic, span.partition, span.begin, span.end):
            if letters:
                fit = [self._digests.of_letter(one) for one in letters if masking.finds(one, look.search, look.whole)]
                yield found.add(fit, letters[-1].place.offset + 1), len(letters)
        yield found.add((), span.end), 0


class Groups:
    """Groups of the letters that were added and fit."""

    def __init__(self, look: Look, notes: NoteOf) -> None:
        self._look = look
        self._notes = notes
        self._frame = None if look.trend_ms is None else Frame(look.trend_ms)
        self._found: dict[tuple[str, str, str], Group] = {}  # by topic, reason, fingerprint
        self._known: Sequence[Kind] = ()
        self._fits: dict[int, bool] = {}  # by place in `_known`
        self._of_kind: dict[int, Group] = {}

    @property
    def is_full(self) -> bool:
        """Whether there are as many as one page has."""
        return len(self._found) >= GROUPS_MAX

    def sorted(self) -> list[Group]:
        """All of them, the most frequent first."""
        return sorted(self._found.values(), key=lambda group: (-group.count, group.topic, group.fingerprint))

    def add(self, span: Span, run: Run, fates: Fates) -> int:
        """Add letters until there are as many groups as one page has; returns how many were looked at."""
        if run.known is not self._known:
            self._known, self._fits, self._of_kind = run.known, {}, {}
        fits, groups, selection, partition = self._fits, self._of_kind, self._look.selection, span.partition
        for number, (offset, time_ms, kind) in enumerate(zip(run.offsets, run.times_ms, run.kinds, strict=True), 1):
            if kind not in fits:
                fits[kind] = selection.has_words(run.known[kind])
            if not fits[kind] or not selection.covers(time_ms):
                continue
            redriven, discarded = fates.of(partition, offset)
            if self._look.only_open and (redriven or discarded):
                continue
            if kind not in groups:
                groups[kind] = self._group(run.known[kind], Place(span.topic, partition, offset), time_ms)
            groups[kind].add(partition, offset, time_ms, redriven, discarded)
            if self.is_full:
                return number
        return len(run.offsets)

    def _group(self, kind: Kind, example: Place, time_ms: int) -> Group:
        """The group that letters of a kind are in; those of several policies share one."""
        key = (example.topic, kind.reason, kind.fingerprint)
        if key not in self._found:
            note = self._notes(example.topic, kind.fingerprint)
            self._found[key] = Group(
                example.topic, kind.reason, kind.error_class, kind.error, kind.fingerprint, example, note, self._frame,
                time_ms, time_ms,
            )  # fmt: skip
        return self._found[key]
