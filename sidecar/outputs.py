"""How the producers of transactions begin: what their predecessors of the same ids left is ended first."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sidecar.ports import TransactionalOutput, TransactionalOutputs
from sidecar.record import LaneId

NAMES: Final = ("a", "b", "alone")  # two take turns, one sends every record in a batch of its own
NEVER_READY: Final = frozenset(
    {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT"}
)
INCOMPLETE: Final = "CONCURRENT_TRANSACTIONS"
ANSWER_S: Final = 5.0


class Sweep(NamedTuple):
    """To end transactions that the coordinator has ended and the group's commits never heard of (KAFKA-20734).

    The next end of the same producer id ends both there. An abort drops what it left pending. That is right even where
    the other partitions have its commit: offsets only say from where a recovery reads the ledger. `place` is one whose
    offset means nothing to anybody.
    """

    member: Any  # as in a transaction
    place: LaneId


def make_outputs(
    makers: TransactionalOutputs,
    former: dict[str, TransactionalOutput],
    wanted: Callable[[], bool],
    sweep: Sweep | None = None,
) -> dict[str, TransactionalOutput] | str:
    """Producers of all names, on the committer's thread. A problem that may pass is returned as text.

    The former ones are let go of here: that waits for their threads. When this try is no longer `wanted`, it must not
    fence off the producers of the next.
    """
    for output in former.values():
        output.give_up()
    former.clear()
    outputs: dict[str, TransactionalOutput] = {}
    for name in NAMES:
        if not wanted():
            return "given up for another try"
        output = makers.output(name)
        try:
            outputs[name] = _begun(output, makers, name, sweep)
        except output.refused as error:
            if error.args[0].name() in NEVER_READY:
                raise
            return str(error.args[0].str())
    return outputs


def _begun(
    output: TransactionalOutput, makers: TransactionalOutputs, name: str, sweep: Sweep | None
) -> TransactionalOutput:
    """It, or its successor, in its first transaction.

    What went before may be decided and not complete (`Transaction.stuck`). If it is a commit, its offsets are unstable
    until they are facts, and a recovery waits for them.
    """
    try:
        output.init(ANSWER_S)
    except output.refused as error:
        if error.args[0].name() != INCOMPLETE:
            raise
        makers.let_go(output)
        output = makers.successor(name)
        output.init(ANSWER_S)
    output.begin()
    if sweep is not None:
        _end_hidden(output, sweep)
    return output


def swept(output: TransactionalOutput, sweep: Sweep) -> str:
    """One producer's sweep, whose open transaction is empty, on the committer's thread. Text: it is of no use now."""
    try:
        _end_hidden(output, sweep)
    except output.refused as error:
        return str(error.args[0].str())
    return ""


def _end_hidden(output: TransactionalOutput, sweep: Sweep) -> None:
    with suppress(output.refused):  # the abort says whether that matters
        output.send_offsets({sweep.place: (0, "")}, sweep.member, ANSWER_S)
    output.abort(ANSWER_S)
    output.begin()
