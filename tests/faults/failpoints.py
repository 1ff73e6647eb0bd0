"""Points of a record's journey at which a process can be made to die: `python -m tests.faults.failpoints run`.

TICKOVER_TEST_FAILPOINT=<name>:<n> kills the process (SIGKILL, no thread has a last word) at the n-th call of the
point's function. The function is wrapped from here: the product knows nothing of it and pays nothing for it.
"""

import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

VARIABLE: Final = "TICKOVER_TEST_FAILPOINT"
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"


@dataclass(frozen=True, slots=True)
class Point:
    """Before or after a call of `module:Class.method`; `most` bounds which call it is.

    `busy`: only calls that returned something count. `stopping`: reached when the process is asked to stop. `slow`:
    reached after ten seconds or more. `wiped`: reached when Redis has lost what it had. `job`: reached when messages
    are changed. `guarantee`: reached in this mode only.
    """

    seam: str
    after: bool
    most: int
    busy: bool = False
    stopping: bool = False
    slow: bool = False
    wiped: bool = False
    job: bool = False
    guarantee: str = ""


def before(seam: str, most: int, **more: Any) -> Point:
    return Point(seam, after=False, most=most, **more)


def after(seam: str, most: int, **more: Any) -> Point:
    return Point(seam, after=True, most=most, **more)


POINTS: Final[dict[str, Point]] = {
    # consume, decide, hold
    "after poll": after("sidecar.kafka.consumer:KafkaIntake.take", 200, busy=True),
    "before a run is decided": before("sidecar.engine.engine:Engine._accept_run", 300),
    "after a run is held": after("sidecar.engine.engine:Engine._accept_run", 300),
    # overflow
    "before overflow put": before("sidecar.overflow.redis_overflow:RedisOverflow.apply", 30),
    "after overflow put": after("sidecar.overflow.redis_overflow:RedisOverflow.apply", 30),
    "after a script ran": after("sidecar.overflow.connection:Link.run_all", 30),
    "before an overflow put is done": before("sidecar.engine.partition.partition:SourcePartition.applied", 30),
    "before promotion": before("sidecar.overflow.redis_overflow:RedisOverflow.promote", 30),
    "after promotion": after("sidecar.overflow.redis_overflow:RedisOverflow.promote", 30),
    "promotion half taken in": before("sidecar.engine.partition.partition:SourcePartition.promoted", 20),
    "after promotion is in the wheel": after("sidecar.engine.partition.partition:SourcePartition.promoted", 20),
    "before tidying": before("sidecar.overflow.redis_overflow:RedisOverflow.tidy", 2, slow=True),
    "after tidying": after("sidecar.overflow.redis_overflow:RedisOverflow.tidy", 2, slow=True),
    # emit
    "before emission": before("sidecar.engine.emission.emitter:Emitter._emit_batch", 300),
    "after emission": after("sidecar.engine.emission.emitter:Emitter._emit_batch", 300),
    "after emission is booked": after("sidecar.engine.emission.emitter:Emitter._handed_over", 300),
    # settle
    "block sealed": after("sidecar.engine.commit.block_builder:build_block", 60),
    "block encoded, not produced": before("sidecar.ledger.topic:LedgerTopic.append", 60),
    "between ledger block and its report": after("sidecar.ledger.topic:LedgerTopic.append", 60),
    "block reported, not marked": before("sidecar.engine.partition.partition:SourcePartition.settle", 60),
    "block marked": after("sidecar.engine.partition.partition:SourcePartition.settle", 60),
    "before commit": before("sidecar.kafka.consumer:KafkaIntake.commit", 60, guarantee=AT_LEAST_ONCE),
    "after commit": after("sidecar.kafka.consumer:KafkaIntake.commit", 60, guarantee=AT_LEAST_ONCE),
    # settle in a transaction
    "producers not yet initialised": before("sidecar.engine.commit.committer:make_outputs", 1, guarantee=EXACTLY_ONCE),
    "producers initialised": before(
        "sidecar.engine.commit.exactly_once:ExactlyOnce._prepared", 1, guarantee=EXACTLY_ONCE
    ),
    "block in the open transaction": after(
        "sidecar.engine.commit.exactly_once:Filling._write", 60, guarantee=EXACTLY_ONCE
    ),
    "block written ahead": after("sidecar.engine.commit.exactly_once:Filling.write_ahead", 60, guarantee=EXACTLY_ONCE),
    "transaction handed over": before("sidecar.engine.commit.transaction:end_transaction", 60, guarantee=EXACTLY_ONCE),
    "transaction acknowledged": after("sidecar.engine.commit.transaction:_acknowledged", 60, guarantee=EXACTLY_ONCE),
    "before offsets are sent": before(
        "sidecar.kafka.transactions:KafkaTransactions.send_offsets", 60, guarantee=EXACTLY_ONCE
    ),
    "offsets sent, not committed": after(
        "sidecar.kafka.transactions:KafkaTransactions.send_offsets", 60, guarantee=EXACTLY_ONCE
    ),
    "committed, nobody knows": after("sidecar.engine.commit.transaction:end_transaction", 60, guarantee=EXACTLY_ONCE),
    "committed, not marked": before(
        "sidecar.engine.commit.exactly_once:ExactlyOnce._committed", 60, guarantee=EXACTLY_ONCE
    ),
    "committed and marked": after(
        "sidecar.engine.commit.exactly_once:ExactlyOnce._committed", 60, guarantee=EXACTLY_ONCE
    ),
    # Redis rebuilt
    "before rebuild": before("sidecar.overflow.rebuild_store:RedisRebuildStore.reset", 1, wiped=True),
    "rebuild begun": after("sidecar.overflow.rebuild_store:RedisRebuildStore.reset", 1, wiped=True),
    "during rebuild": before("sidecar.overflow.rebuild_store:RedisRebuildStore.redo", 2, wiped=True),
    "during rebuild, piece written": after("sidecar.overflow.rebuild_store:RedisRebuildStore.redo", 2, wiped=True),
    "rebuilt, not reconciled": before("sidecar.engine.storage.rebuild:LaneRebuild._reconcile", 1, wiped=True),
    # come and go
    "before assignment": before("sidecar.engine.assignment:Assignment.assigned", 1),
    "before recovery": before("sidecar.engine.recovery_reader:RecoveryWorker.recover", 1),
    "during recovery": before("sidecar.engine.recovery:Replay.lane", 4),
    "after recovery": after("sidecar.engine.recovery_reader:RecoveryWorker.recover", 1),
    "before revocation": before("sidecar.engine.assignment:Assignment.revoked", 1, stopping=True),
    "revoked, drained": after("sidecar.engine.assignment:Assignment._drain", 1, stopping=True),
    "after revocation": after("sidecar.engine.assignment:Assignment.revoked", 1, stopping=True),
    # jobs
    "changed, not written down": before("sidecar.operations.bulk.run:ChangeWork._finish", 6, job=True),
}


def install(name: str, nth: int, die: Callable[[], None]) -> None:
    """Wrap the point's function so that `die` is called at its n-th call. Raises when the seam has gone."""
    point = POINTS[name]
    module_name, _, path = point.seam.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, attribute)
    calls = 0

    def strike() -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            die()

    @wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        if not point.after:
            strike()
        result = original(*args, **options)
        if point.after and (result or not point.busy):
            strike()
        return result

    setattr(owner, attribute, wrapped)
    if owner is module:
        _rebind(original, wrapped)


def _rebind(original: Any, wrapped: Any) -> None:
    """A function that others imported by name is theirs by now: give them the wrapped one."""
    for name in ("sidecar.engine.commit.at_least_once", "sidecar.engine.commit.exactly_once"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for attribute, value in vars(module).items():
            if value is original:
                setattr(module, attribute, wrapped)
                break


def kill_process() -> None:
    """As `kill -9` from outside, at this instruction."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """The product's command, with the failpoint that the environment asks for."""
    name, _, nth = os.environ.pop(VARIABLE).rpartition(":")
    from sidecar.__main__ import main as command

    install(name, int(nth), kill_process)
    command()


if __name__ == "__main__":
    main()
