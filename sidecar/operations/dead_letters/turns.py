"""Turns to send. Redrives that may mean the same letters send one after the other: each knows what was sent before it
began, and two that send at the same moment would both send a letter.

Nobody but the log of redrives orders those of many processes, so they take numbers as in a bakery (Lamport): who begins
says so with turn 0, looks at all that the log has, writes a turn above those of its rivals, looks once more, and waits
for each rival that has a lower turn or chooses still. Of two that choose at the same moment at least one sees the
other's turn. A turn is of the progress: who goes on with the redrive of a dead process has it, too.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.operations.dead_letters.redrive_plan import Redrive
from sidecar.operations.jobs.job import State

CHOOSING: Final = 0
SENDING: Final = (State.CANARY, State.RUNNING)  # what a progress says until nothing more is sent


def rivals(mine: Redrive, others: Iterable[Redrive]) -> Iterator[Redrive]:
    """Other redrives that send letters now, and may mean one that `mine` means, too."""
    plan = mine.plan
    for one in others:
        is_another = one.plan.id != plan.id and one.plan.topic == plan.topic
        if is_another and one.progress.state in SENDING and plan.selection.may_share(one.plan.selection):
            yield one


def turn_after(mine: Redrive, others: Iterable[Redrive]) -> int:
    """The turn that `mine` takes."""
    return 1 + max((one.progress.turn for one in rivals(mine, others)), default=CHOOSING)


def first_of(mine: Redrive, others: Iterable[Redrive]) -> str | None:
    """The plan of a rival that is to be waited for; None: it's the turn of `mine`."""
    before = ((one.progress.turn, one.plan.id) for one in rivals(mine, others))
    return min((place for place in before if place < (mine.progress.turn, mine.plan.id)), default=(CHOOSING, None))[1]
