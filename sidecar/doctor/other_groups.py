"""Other groups of tickover that have the same sources.

A group's name is its identity: commits, ledger and the keys in Redis go by it. One that is new begins at the beginning
of its sources, so after a typo or a change of the name everything that was emitted is emitted once more.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.doctor.facts import Finding, Severity
from sidecar.ledger.commit_metadata import decode_mark, decode_metadata

LEDGER: Final = re.compile(r"tickover\.(.+)\.ledger")  # as it is called where no setting says otherwise
# Who may not see a group can't be asked about it; and one that was never there has nothing.
UNSEEN: Final = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.GROUP_ID_NOT_FOUND})


Commits = Callable[[str], Iterable[TopicPartition]]  # of a group, as `group_commits` gives them


class NewGroupError(Exception):
    """The group is new, and another one has its sources."""


def others_with(commits: Commits, group: str, topics: Iterable[str], sources: Collection[str]) -> dict[str, list[str]]:
    """Other groups with a ledger among `topics` and commits of ours for some of `sources`, and which; empty where this
    group has commits itself: it isn't new.

    Raises KafkaException when the brokers don't answer.
    """
    if not sources or any(True for _ in _committed(commits, group)):
        return {}
    others = sorted({found[1] for topic in topics if (found := LEDGER.fullmatch(topic))} - {group})
    known = {other: sorted({*_committed(commits, other)}.intersection(sources)) for other in others}
    return {other: shared for other, shared in known.items() if shared}


def refuse_if_new(commits: Commits, group: str, topics: Iterable[str], sources: Collection[str]) -> None:
    """Raises NewGroupError with the ways on, and as `others_with`."""
    others = others_with(commits, group, topics, sources)
    if others:
        raise NewGroupError(f"{_problem(group, others)}: {_ways_on(group, others)}")


def findings_of(group: str, others: dict[str, list[str]]) -> Iterator[Finding]:
    """Finding of `tickover doctor` about other groups that emit from a new group's sources."""
    if others:
        yield Finding(Severity.ERROR, f"group {group}", _problem(group, others), _ways_on(group, others))


def _problem(group: str, others: dict[str, list[str]]) -> str:
    named = "; ".join(f"{other} has {', '.join(shared)}" for other, shared in others.items())
    return f"the group {group} is new and begins at the beginning, and another group emits from its sources ({named})"


def _ways_on(group: str, others: dict[str, list[str]]) -> str:
    other = next(iter(others))
    return (
        f"if {group} is only another name for {other}, go back to that (TICKOVER_GROUP={other}) or take all of it over "
        f"(tickover group rename {other} {group}): else all that it has emitted is emitted once more; if both are "
        f"meant, say where {group} begins (TICKOVER_START=earliest or latest)"
    )


def _committed(commits: Commits, group: str) -> Iterator[str]:
    """Topics for which the group has a commit of ours, or the mark of a rename in its place."""
    try:
        found = commits(group)
    except KafkaException as error:
        if error.args[0].code() in UNSEEN:
            return
        raise
    for one in found:
        if _is_ours(one.offset, one.metadata or ""):
            yield one.topic


def _is_ours(offset: int, text: str) -> bool:
    return decode_mark(text) is not None or decode_metadata(offset, text) is not None
