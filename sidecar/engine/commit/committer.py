"""The committer: the thread for calls of the client that wait for brokers, and how it makes transactional producers.

A producer's transactional id ends what its predecessor of the same id left open (`make_outputs`).
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from sidecar.model.call_limit import CallLimit
from sidecar.model.ports import Member, Time, TransactionalOutput, TransactionalOutputs
from sidecar.model.record import TopicPartition

HUNG_MAX: Final = 3  # calls that never came back: more, and the process had better start over
ISOLATION: Final = "alone"  # sends every record in a batch of its own
SMALL: Final = "small"  # sends small batches
APART: Final = (SMALL, ISOLATION)
NAMES: Final = ("a", "b", *APART)  # the first two take turns
NEVER_READY: Final = frozenset(
    {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT"}
)
INCOMPLETE: Final = "CONCURRENT_TRANSACTIONS"
ANSWER_S: Final = 5.0
RETRY_S: Final = 0.5

log = logging.getLogger(__name__)


class HungClientError(Exception):
    """Calls of the Kafka client don't come back: the process ends and starts over."""


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    done: Callable[[Any], None]
    limit: CallLimit


class BlockingCallThread:
    """The committer: one thread that waits for the brokers in the engine's stead, one job at a time. Owned by the
    engine's thread; only `work` runs elsewhere.

    A call of the client that doesn't come back can't be interrupted: its thread is left behind and another takes over.
    How long a call may take is its own matter (`call_limit.py`): a job of many calls may take as long as all of them.
    """

    def __init__(self, executors: Callable[[], Executor], time: Time) -> None:
        self._executors = executors
        self._time = time
        self._executor: Executor | None = None
        self._job: _Job | None = None
        self._hung: list[Future[Any]] = []

    @property
    def busy(self) -> bool:
        """A job is under way, or its result not taken."""
        return self._job is not None

    @property
    def late(self) -> bool:
        """The job's call does not come back."""
        job = self._job
        return job is not None and not job.future.done() and job.limit.passed

    def renew(self) -> None:
        """Leave behind whatever is under way: its result is not wanted. Raises HungClientError at the last straw."""
        if self._job is not None and not self._job.future.done():
            self._hung = [*(future for future in self._hung if not future.done()), self._job.future]
            if len(self._hung) > HUNG_MAX:
                raise HungClientError(f"{len(self._hung)} calls of the Kafka client did not come back")
        self.stop()
        self._job = None
        self._executor = self._executors()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do `work` over there; `take` will give what it returned to `done`, here."""
        assert self._executor is not None
        limit = CallLimit(self._time)
        self._job = _Job(self._executor.submit(partial(limit.watch, work)), done, limit)

    def take(self) -> None:
        """Take the result, when there is one; what `work` raised is raised here."""
        job = self._job
        if job is not None and job.future.done():
            self._job = None
            job.done(job.future.result())

    def stop(self) -> None:
        """Let the thread end. Twice is harmless."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


class PendingOffsetsFlush(NamedTuple):
    """To end transactions that the coordinator has ended and the group's commits never heard of (KAFKA-20734).

    The next end of the same producer id ends both there. An abort drops what it left pending. That is right even where
    the other partitions have its commit: offsets only say from where a recovery reads the ledger. `place` is one whose
    offset means nothing to anybody.
    """

    member: Member  # as in a transaction; or of no name, from a process without partitions: the abort follows
    place: TopicPartition


def make_outputs(
    makers: TransactionalOutputs,
    former: dict[str, TransactionalOutput],
    wanted: Callable[[], bool],
    sweep: PendingOffsetsFlush | None = None,
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


def next_output(makers: TransactionalOutputs, name: str, stuck: bool) -> TransactionalOutput:
    """Producer that takes over from one that can't be used any more."""
    return makers.successor(name) if stuck else makers.output(name)


def _begun(
    output: TransactionalOutput, makers: TransactionalOutputs, name: str, sweep: PendingOffsetsFlush | None
) -> TransactionalOutput:
    """The producer, or its successor, in its first transaction.

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


def _end_hidden(output: TransactionalOutput, sweep: PendingOffsetsFlush) -> None:
    with suppress(output.refused):  # the abort says whether that matters
        output.send_offsets({sweep.place: (0, "")}, sweep.member, ANSWER_S)
    output.abort(ANSWER_S)
    output.begin()


class IsolationProducerRestart:
    """Makes the producers of what goes apart anew, in a thread of its own: transactions of the other two go on.

    Owned by the engine's thread. What goes in small batches or one by one waits meanwhile, and nothing else does.
    """

    def __init__(self, makers: TransactionalOutputs, time: Time) -> None:
        self._makers = makers
        self._time = time
        self._thread = BlockingCallThread(makers.executor, time)
        self._wanted: Sequence[str] = APART
        self._due_s = inf
        self._tries = 0  # what an earlier one left behind must not fence off the producers of the next

    def want(self) -> None:
        """At the next step."""
        self._wanted = APART
        self._due_s = self._time.monotonic_s()

    def give_up(self) -> None:
        """Nothing is wanted any more, nor what is under way."""
        self._due_s = inf
        self._tries += 1
        self._thread.renew()

    def stop(self) -> None:
        """Let the thread end. Twice is harmless."""
        self._thread.stop()

    def step(self, outputs: dict[str, TransactionalOutput], sweep: Callable[[], PendingOffsetsFlush]) -> None:
        """Put them into `outputs` when they are ready. Not while a transaction of a former one is under way."""
        self._thread.take()
        if self._thread.late or self._time.monotonic_s() >= self._due_s:
            self.give_up()
            for name in self._wanted:
                if (former := outputs.pop(name, None)) is not None:
                    self._makers.let_go(former)
            tries = self._tries
            make = partial(_remade, self._makers, sweep(), self._wanted, lambda: tries == self._tries)
            self._thread.submit(make, partial(self._take, outputs))

    def _take(self, outputs: dict[str, TransactionalOutput], made: dict[str, TransactionalOutput | str]) -> None:
        problems = {name: output for name, output in made.items() if isinstance(output, str)}
        outputs |= {name: output for name, output in made.items() if not isinstance(output, str)}
        if problems:
            log.warning("no producer for some records for now", extra={"problem": ", ".join(set(problems.values()))})
            self._wanted, self._due_s = tuple(problems), self._time.monotonic_s() + RETRY_S


def _remade(
    makers: TransactionalOutputs, sweep: PendingOffsetsFlush, names: Sequence[str], wanted: Callable[[], bool]
) -> dict[str, TransactionalOutput | str]:
    """The producers that can be made while they are wanted, and why the others can't."""
    made: dict[str, TransactionalOutput | str] = {}
    for name in names:
        if not wanted():
            break
        output = makers.output(name)
        try:
            made[name] = _begun(output, makers, name, sweep)
        except output.refused as error:
            made[name] = str(error.args[0].str())
    return made
