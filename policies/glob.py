"""Globs (`*`, `?`, `[a-z]`, `[!a-z]`; case matters) over topics, header values and error classes.

They mean what Python's fnmatch says, but are no regular expressions: those are kept in a cache of the process, with
megabytes for the globs of one policy, and take long to compile. A `Matcher` is gone with its owner.

    names        without wildcards                                one look-up
    beginnings   `orders-*`, and `*`                              one call
    endings      `*-retry`                                        one call
    places       `a?c`, `v[0-9]*`, `a*b*c`: what stands between   each literal is looked for from where the last one
                 two stars is literal                             ended: with only a star before it the first is best
    states       `*a?c*`: what stands there is not                all ways at once (`States`)

No text makes any of it take longer than its length times the length of the globs; of states a machine word at a time.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, NamedTuple

CHARACTER_MAX: Final = 0x10FFFF
KNOWN_MAX: Final = 256  # texts whose answer a matcher remembers
KNOWN_LENGTH_MAX: Final = 64
LISTED_MAX: Final = 64  # characters of a set that are listed, each for itself
GROUP_TOKENS_MAX: Final = 256  # of globs that are matched by one number: a mask of them is 32 bytes

_WILD: Final = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")

Ranges = tuple[tuple[int, int], ...]  # of characters: first and last, in order, apart
Token = str | Ranges  # one character that is meant, or some

STAR: Final[Ranges] = ((-1, -1),)  # no character: any number of any
ANY: Final[Ranges] = ((0, CHARACTER_MAX),)


def is_exact(glob: str) -> bool:
    """Whether the glob has no wildcard and so matches only itself."""
    return _WILD.search(glob) is None


def literal_length(glob: str) -> int:
    """Characters outside wildcards: of two globs that match, the one with more of them knows better."""
    return len(_WILD.sub("", glob))


@dataclass(frozen=True, slots=True, eq=False)
class Matcher:
    """Several globs as one: a text matches when any of them matches all of it."""

    names: frozenset[str]
    beginnings: tuple[str, ...]
    endings: tuple[str, ...]
    others: "tuple[Places | States, ...]"
    _known: dict[str, bool] = field(default_factory=dict, repr=False)

    def matches(self, text: str) -> bool:
        """Whether one of the globs matches all of the text."""
        # Hot. Error classes and header values are few: an answer that is remembered takes a tenth of the time.
        if self.others and (known := self._known.get(text)) is not None:
            return known
        if text in self.names:
            return True
        if self.beginnings and text.startswith(self.beginnings):
            return True
        if self.endings and text.endswith(self.endings):
            return True
        return self._others_match(text) if self.others else False

    def _others_match(self, text: str) -> bool:
        found = any(other.matches(text) for other in self.others)
        if len(text) <= KNOWN_LENGTH_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[text] = found
        return found


def compile_globs(globs: Iterable[str]) -> Matcher | None:
    """One matcher of what any of the globs matches; None for no globs."""
    names, beginnings, endings = [], [], []
    places: list[Places] = []
    states: list[list[Token]] = []
    for glob in dict.fromkeys(globs):
        if is_exact(glob):
            names.append(glob)
        elif glob.endswith("*") and is_exact(glob[:-1]):
            beginnings.append(glob[:-1])
        elif glob.startswith("*") and is_exact(glob[1:]):
            endings.append(glob[1:])
        elif (found := _places(tokens := list(_tokens(glob)))) is not None:
            places.append(found)
        else:
            states.append(tokens)
    if not (names or beginnings or endings or places or states):
        return None
    others: tuple[Places | States, ...] = (*places, *map(_states, _groups(states)))
    return Matcher(frozenset(names), tuple(beginnings), tuple(endings), others)


class Segment(NamedTuple):
    """Piece of a glob without a star, which a text must have at one place."""

    length: int
    begins: str  # up to its first wildcard
    literals: tuple[tuple[int, str], ...]  # behind it, and where they begin
    some: tuple[tuple[int, str | Ranges], ...]  # one character of these

    def stands_at(self, text: str, place: int) -> bool:
        """Whether the text, which is long enough, goes on so from there."""
        _, begins, literals, some = self
        if not text.startswith(begins, place):
            return False
        for offset, literal in literals:
            if not text.startswith(literal, place + offset):
                return False
        for offset, among in some:
            character = text[place + offset]
            if isinstance(among, str):
                if character not in among:
                    return False
            elif not any(low <= ord(character) <= high for low, high in among):
                return False
        return True


class Places(NamedTuple):
    """One glob: what its texts begin and end with, and between them, in this order, literals."""

    first: Segment
    middle: tuple[str, ...]
    last: Segment
    has_star: bool

    def matches(self, text: str) -> bool:
        """Whether it matches all of the text."""
        first, middle, last, has_star = self
        place, end = first[0], len(text) - last[0]
        if place > end or (place < end and not has_star):
            return False
        if (place and not first.stands_at(text, 0)) or (last[0] and not last.stands_at(text, end)):
            return False
        for literal in middle:
            found = text.find(literal, place, end)
            if found < 0:
                return False
            place = found + len(literal)
        return True


class States(NamedTuple):
    """Some globs at once, all ways to match them at the same time: Shift-And, by Baeza-Yates and Gonnet.

    Bit n of the state stands for the place before token n of all their tokens, one glob behind the other, each with a
    bit for its end. A character moves the bits of the tokens that mean it on by one, and leaves those at a star.

        glob     * a ? b     begin 0001   ends 1000   stays 0001   meant by a: 0011, b: 0110, x: 0010
        text     x a x b     state 0001 -> 0001 -> 0011 -> 0101 -> 1001: it ends at an end
    """

    begin: int
    ends: int
    stays: int
    characters: Sequence[int]  # from here on, up to the next, all are meant by the same tokens
    meant_by: Sequence[int]

    def matches(self, text: str) -> bool:
        """Whether one of them matches all of the text."""
        state, _, stays, characters, meant_by = self
        for character in text:
            meant = meant_by[bisect_right(characters, ord(character)) - 1]
            state = (state & meant) << 1 | state & stays
            if not state:
                return False
        return state & self.ends != 0


def _places(tokens: list[Token]) -> Places | None:
    segments = [[*part] for is_star, part in groupby(tokens, lambda token: token == STAR) if not is_star]
    first = [] if tokens[0] == STAR or not segments else segments.pop(0)
    last = [] if tokens[-1] == STAR or not segments else segments.pop()
    if any(isinstance(token, tuple) for segment in segments for token in segment):
        return None
    middle = tuple("".join(map(str, segment)) for segment in segments)
    return Places(_segment(first), middle, _segment(last), STAR in tokens)


def _segment(tokens: Sequence[Token]) -> Segment:
    literals: list[tuple[int, str]] = []
    some: list[tuple[int, str | Ranges]] = []
    place = 0
    for is_text, part in groupby(tokens, lambda token: isinstance(token, str)):
        run = list(part)
        if is_text:
            literals.append((place, "".join(map(str, run))))
        else:
            some += [(place + at, _listed(token)) for at, token in enumerate(run) if token is not ANY]
        place += len(run)
    begins = literals.pop(0)[1] if literals and literals[0][0] == 0 else ""
    return Segment(place, begins, tuple(literals), tuple(some))


def _listed(token: Token) -> str | Ranges:
    if isinstance(token, str) or sum(high - low + 1 for low, high in token) > LISTED_MAX:
        return token
    return "".join(chr(one) for low, high in token for one in range(low, high + 1))


def _groups(globs: Iterable[list[Token]]) -> Iterator[list[list[Token]]]:
    group: list[list[Token]] = []
    for tokens in globs:
        if group and sum(map(len, group)) + len(tokens) > GROUP_TOKENS_MAX:
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group


def _states(globs: list[list[Token]]) -> States:
    begin, ends, stays, bit = 0, 0, 0, 1
    changes: dict[int, int] = {0: 0}  # at which character which tokens begin or cease to mean it
    for tokens in globs:
        begin |= bit
        for token in tokens:
            if token == STAR:
                stays |= bit
                continue
            for low, high in ((ord(token), ord(token)),) if isinstance(token, str) else token:
                changes[low] = changes.get(low, 0) ^ bit
                changes[high + 1] = changes.get(high + 1, 0) ^ bit
            bit <<= 1
        ends |= bit
        bit <<= 1
    characters, meant_by, meant = sorted(changes), [], 0
    for character in characters:
        meant ^= changes[character]
        meant_by.append(meant)
    return States(begin, ends, stays, characters, meant_by)


def _tokens(glob: str) -> Iterator[Token]:
    place = 0
    while place < len(glob):
        character = glob[place]
        place += 1
        if character == "*":
            yield STAR
        elif character == "?":
            yield ANY
        elif character == "[" and (end := _end_of_set(glob, place)) >= 0:
            yield _set(glob[place:end])
            place = end + 1
        else:
            yield character


def _end_of_set(glob: str, begin: int) -> int:
    """Where the set that begins here has its bracket; -1: nowhere, so that the first one means itself."""
    begin += glob.startswith("!", begin)
    return glob.find("]", begin + 1 if glob.startswith("]", begin) else begin)


def _set(inside: str) -> Ranges:
    """The characters that a set means. Ranges that run backwards mean nothing, as fnmatch has it."""
    parts = _parts(inside)
    is_negative = parts[0].startswith("!")
    parts[0] = parts[0][is_negative:]
    if not parts[0] and len(parts) > 1:  # its hyphen stands first, and means itself
        parts[:2] = ["-" + parts[1]]
    found = [(ord(one), ord(one)) for part in parts for one in part]
    found += [(ord(low[-1]), ord(high[0])) for low, high in pairwise(parts)]
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if ranges and low <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(high, ranges[-1][1])
        else:
            ranges.append((low, high))
    if not is_negative:
        return tuple(ranges)
    lows, highs = [0, *(high + 1 for _, high in ranges)], [*(low - 1 for low, _ in ranges), CHARACTER_MAX]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low <= high)


def _parts(inside: str) -> list[str]:
    """Pieces of a character class between the hyphens that make ranges."""
    parts, begin = [], 0
    hyphen = inside.find("-", 2 if inside.startswith("!") else 1)
    while hyphen >= 0:
        parts.append(inside[begin:hyphen])
        begin = hyphen + 1
        hyphen = inside.find("-", hyphen + 3)
    if begin == 0 or inside[begin:]:
        parts.append(inside[begin:])
    else:
        parts[-1] += "-"
    for at in range(len(parts) - 1, 0, -1):
        if parts[at - 1][-1] > parts[at][0]:
            parts[at - 1 : at + 1] = [parts[at - 1][:-1] + parts[at][1:]]
    return parts
