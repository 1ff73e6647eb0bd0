"""Reads chunks of one lane from Redis, page by page, and watches `hw` with every page."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.chunk import ChunkCodec, ChunkDamagedError
from sidecar.overflow.connection import Client, Link
from sidecar.overflow.interface import OverflowLoss, raise_if_lost
from sidecar.overflow.keys import (
    LEVELS,
    Header,
    HeaderFormatError,
    LaneKeys,
    Level,
    chunk_place,
    offset_member,
    read_header,
    read_place,
)
from sidecar.overflow.read_ahead import Read
from sidecar.overflow.scripts import LIST, READ

HEADERS_PER_PAGE: Final = 1_000
STRUCK_PER_COMMAND: Final = 2_000


class GoneError(Exception):
    """A chunk went away between its header and its blob: another process moved it. Read again."""


class LaneReader:
    """Reads headers and blobs of one lane, and watches `hw` with every page."""

    def __init__(self, link: Link, codec: ChunkCodec, keys: LaneKeys, lane: TopicPartition, acknowledged: int) -> None:
        self.keys = keys
        self.hw = -1  # as of the first page
        self._link = link
        self._codec = codec
        self._lane = lane
        self._acknowledged = acknowledged

    def all_headers(self, after: Position, until: Position, records_enough: int) -> tuple[list[Header], Position]:
        """Headers of all levels with records in after..until, by first position, and how far they reach."""
        self.hw = -1
        headers: list[Header] = []
        limit = until
        for level in LEVELS:
            found, reach = self._headers(level, after, until, records_enough)
            headers += found
            limit = min(limit, reach)
        headers.sort()
        return headers, limit

    def _headers(
        self, level: Level, after: Position, until: Position, records_enough: int
    ) -> tuple[list[Header], Position]:
        """Headers of one level; ends early when those before the last one have enough records."""
        low, high, last = level.start_ms(max(after.due_ms, 0)), until.due_ms, b""
        headers: dict[bytes, Header] = {}
        waiting: list[Header] = []  # may reach beyond what was listed
        enough = 0
        while True:
            page = self.page(level, str(low), str(high), last)
            fresh = [header for header in page if header.last > after and header.member not in headers]
            headers.update((header.member, header) for header in fresh if header.first <= until)
            if len(page) < HEADERS_PER_PAGE or page[-1].first > until:
                return list(headers.values()), until
            frontier = page[-1].first
            waiting += fresh
            enough += sum(header.rows for header in waiting if header.last <= frontier)
            waiting = [header for header in waiting if header.last > frontier]
            # Whatever is not listed begins at or after the frontier.
            if enough >= records_enough and frontier > after:
                return list(headers.values()), min(until, frontier)
            low, last = frontier.due_ms, page[-1].member

    def page(self, level: Level, low: str, high: str, last: bytes) -> list[Header]:
        """The next headers of a level by (score, header), behind `last`."""
        keys = self.keys.fixed
        hw, members = self._link.run(LIST, keys, [level.place, low, high, HEADERS_PER_PAGE, last])
        self.check(hw, keys)
        return self.headers(members, level)

    def headers(self, members: Sequence[bytes], level: Level) -> list[Header]:
        """Headers unpacked from these members of a level. Raises OverflowLoss where one is damaged."""
        try:
            return [read_header(member, level) for member in members]
        except HeaderFormatError as error:
            raise OverflowLoss(self._lane, 0, str(error)) from error

    def place(self, member: bytes) -> Position:
        """Record's place that an index entry names. Raises OverflowLoss where it names none that could be."""
        try:
            return read_place(member)
        except HeaderFormatError as error:
            raise OverflowLoss(self._lane, 0, str(error)) from error

    def after(self, after: Position) -> Read:
        """Reads chunks, leaving out what is at or before `after` and what is struck out."""

        def read(headers: Sequence[Header], limit: Position) -> Iterator[list[Held]]:
            keys = [*self.keys.fixed, *map(self.keys.slot, headers)]
            first = min(header.first.due_ms for header in headers)
            last = max(header.last.due_ms for header in headers)
            hw, blobs, struck = self._link.run(READ, keys, [first, last, *(header.member for header in headers)])
            self.check(hw, keys)
            for header, data in zip(headers, blobs, strict=True):
                if data is None:
                    self._explain_missing(header)
                if isinstance(data, int):
                    detail = f"a chunk of {header.blob_bytes} bytes has {data}"
                    raise OverflowLoss(self._lane, 0, detail)
                try:
                    records = self._codec.unpack(header.blob(data, chunk_place(self.keys.tag, header)), after, limit)
                except ChunkDamagedError as error:
                    raise OverflowLoss(self._lane, 0, str(error)) from error
                yield self._unstruck(records) if struck else records

        return read

    def _unstruck(self, records: list[Held]) -> list[Held]:
        kept: list[Held] = []
        for start in range(0, len(records), STRUCK_PER_COMMAND):
            some = records[start : start + STRUCK_PER_COMMAND]
            members = [offset_member(held.offset) for held in some]
            scores = self._link.do(self.keys.struck, partial(_scores, self.keys.struck, members))
            kept += [held for held, score in zip(some, scores, strict=True) if score is None]
        return kept

    def _explain_missing(self, header: Header) -> None:
        level = self.keys.level(header.level)
        if self._link.do(level, lambda client: client.zscore(level, header.member)) is None:
            raise GoneError
        raise OverflowLoss(self._lane, 0, f"a chunk of {header.rows} records has a header but no content")

    def check(self, hw: int, keys: Sequence[str]) -> None:
        """Raises OverflowLoss when this is less than was acknowledged, or says that one of these keys has gone."""
        raise_if_lost(self._lane, hw, keys, self._acknowledged)
        if self.hw < 0:
            self.hw = hw


def _scores(key: str, members: Sequence[bytes], client: Client) -> Any:
    return client.zmscore(key, members)
