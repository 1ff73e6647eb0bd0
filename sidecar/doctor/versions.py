"""Another version for a group that holds records: whether its replicas are replaced one by one, and the way back.

`FORMATS` is the one table of it. docs/failures.md#formats and docs/how-to/upgrade.md say the same; a test compares.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from sidecar.doctor.facts import Finding, Severity

Version = tuple[int, int, int]
FIRST: Final[Version] = (0, 1, 0)
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class Step(NamedTuple):
    """From this version on a program writes and reads this number of a format. `needs`: what must have come true before
    it writes it; empty: nothing.
    """

    since: Version
    number: str
    needs: str = ""


class Format(NamedTuple):
    """Format of something that outlives a process. `older`: what an older program does that meets a number which it
    doesn't know; empty: it goes on.
    """

    name: str
    steps: tuple[Step, ...]
    older: str = ""


STOPS: Final = "ends with status 1"
FORMATS: Final = (
    # 0.1.0 was never published: its numbers are the lowest that any build of it had.
    Format("ledger block", (Step(FIRST, "1"), Step((0, 2, 0), "3")), STOPS),
    Format(
        "offset commit",
        (
            Step(FIRST, "1"),
            Step((0, 2, 0), "2"),
            Step((0, 2, 0), "3", "a source's log was cut back"),
        ),
        STOPS,
    ),
    Format("number of a partition's change blocks in Redis", (Step(FIRST, "without +"), Step((0, 2, 0), "with +"))),
    Format("chunk in Redis", (Step(FIRST, "1"),), STOPS),
    Format(
        "policy",
        (
            Step(FIRST, "1"),
            Step((0, 2, 0), "2", "a policy has spread, breaker, rate, burst, order or quota"),
        ),
        "keeps the last table that it can read, and one that starts isn't ready",
    ),
    Format(
        "schedule",
        (Step(FIRST, "1"), Step((0, 3, 0), "2", "a schedule has a start or an end")),
        "shows it as failing, and leaves it to other replicas",
    ),
    Format(
        "plan of a redrive or change",
        (
            Step(FIRST, "1"),
            Step(
                (0, 3, 0),
                "2",
                "a redrive discards, edits, names or searches its letters, or `changes.approval` is `other`",
            ),
        ),
        "doesn't know the plan",
    ),
    Format(
        "pause",
        (Step(FIRST, "none"), Step((0, 3, 0), "1", "something is paused")),
        "knows no pauses: it emits what is paused",
    ),
)


class VersionError(ValueError):
    """No version, or one that this program can't speak of; its text says which."""


def examine_version(since: str, now: str) -> list[Finding]:
    """Say what changes for a group that runs version `since` when this program, which is `now`, takes its place.

    An error: its replicas can't be replaced one by one. A warning: there is no way back, or not in each case. Raises
    VersionError.
    """
    old, new = _parsed(since), _parsed(now)
    if old < FIRST:
        raise VersionError(f"{since}: nothing is known of versions before {_text(FIRST)}")
    if old > new:
        raise VersionError(f"{since} is newer than this program ({now}): ask the newer one, it knows both")
    changed = [(one, step) for one in FORMATS for step in one.steps if old < step.since <= new]
    stops = [(one, step) for one, step in changed if one.older]
    always = ", ".join(one.name for one, step in stops if not step.needs)
    used = ", or ".join(step.needs for _, step in stops if step.needs)
    return [*_formats(changed, old, since, now), *_roll(always, used, since, now), *_way_back(always, used, since, now)]


def _formats(changed: list[tuple[Format, Step]], old: Version, since: str, now: str) -> Iterator[Finding]:
    if not changed:
        yield Finding(Severity.OK, "formats", f"{since} and {now} write the same")
    for one, step in changed:
        was = [before.number for before in one.steps if before.since <= old][-1]
        when = step.needs and f" once {step.needs}"
        meets = f"{since} {one.older} where it meets that" if one.older else f"{since} reads it as well"
        what = f"{one.name}: {since} writes {was}, {now} writes {step.number}{when}; {meets}"
        yield Finding(Severity.OK, "formats", what)


def _roll(always: str, used: str, since: str, now: str) -> Iterator[Finding]:
    if always:
        what = f"replicas can't be replaced one by one: {since} can't go on where {now} has settled ({always})"
        fix = "take all replicas down, then start the new ones: what falls due meanwhile is late, and none is lost"
        yield Finding(Severity.ERROR, "roll", what, fix)
    elif used:
        fix = f"until no replica is {since}, see that none of this comes true: {used}"
        yield Finding(Severity.WARNING, "roll", "replicas can be replaced one by one, with care", fix)
    else:
        yield Finding(Severity.OK, "roll", "replicas can be replaced one by one")


def _way_back(always: str, used: str, since: str, now: str) -> Iterator[Finding]:
    if always:
        what = f"there is no way back to {since} once {now} has settled anything ({always})"
        fix = f"rehearse {now} on a copy; if it was started, go on with it or a later one"
        yield Finding(Severity.WARNING, "way back", what, fix)
    elif used:
        what = f"there is a way back to {since} until {used}"
        yield Finding(Severity.WARNING, "way back", what, f"don't use what is new until {now} stays")
    else:
        yield Finding(Severity.OK, "way back", f"{since} goes on where {now} was, and emits what it holds once")


def _parsed(text: str) -> Version:
    found = _VERSION.fullmatch(text)
    if found is None:
        raise VersionError(f"{text!r} is no version, as 0.1.0")
    return int(found[1]), int(found[2]), int(found[3])


def _text(version: Version) -> str:
    return ".".join(map(str, version))
