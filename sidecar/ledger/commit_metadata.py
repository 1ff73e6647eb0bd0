"""Metadata that an offset commit carries beside the offset: where a recovery of the lane begins.

One line of JSON of about 200 bytes; the client refuses more than 4,095 characters. Its first key is our mark and
version:

    {"tickover":2,"watermark":[due_ms,offset],"acknowledged":A,"block":E,"recovery":..,"rebuild":..,
     "overflow_held":..,"topic_id":"..","leader_epoch":..,"rebuild_due":..,"partitions":..,
     "ledger_id":"..","ledger_partitions":..,"first_change":..,"read":[[offset,epoch,timestamp_ms],..]}

L is the committed offset itself, as the source's log has it. Version 1 had none of the last four, version 2 did
without the last one. `leader_epoch` is always -1: it is in `read`. Where the log was cut back there is one more, of
version 3, as who doesn't know it would take one record for another: "cuts":[[lane offset,log offset],..].

While a group is renamed, and for ever after at its old name, a commit is a mark instead, of a version that no state
will ever have, so that every program stops at it:

    {"tickover":1073741824,"old":"..","new":"..","state":".."}

`state` is the text that the mark replaces; "" at the new name.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from sidecar.ledger.frame import LedgerFormatError, NewerLedgerFormatError
from sidecar.model.log_cuts import NO_CUTS, Cuts, Marks, ReadMark
from sidecar.model.record import Position

METADATA_BYTES_MAX: Final = 4_095  # the broker takes 4,096, but librdkafka sends a NUL with them

_MARK: Final = '{"tickover":'
_VERSION: Final = 3
_VERSION_WITHOUT_CUTS: Final = 2
_RENAMED_VERSION: Final = 1 << 30
_INT64_MAX: Final = (1 << 63) - 1
_encode_json: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class CommitState:
    """A lane at a commit: L, W, A, E and the pointers into the ledger partition where its blocks are.

    `block_offset` is the ledger offset of this commit's own last block. `topic_id` and `leader_epoch` are the
    source's: a commit of another topic of the same name is not ours to go on from. `partitions`: see `Start`.
    `ledger_id` and `ledger_partitions` are Kafka's id and the size of the ledger that the places are in; "" and 0 where
    they aren't known. `first_change`: after which number the changes of this source began; smaller ones in Redis are
    of a former topic of this name. `read`: records of the source that were read, the last one last; `cuts`: where its
    log was cut back. `low` is an offset of the log.
    """

    low: int
    watermark: Position
    acknowledged: int
    block_offset: int
    recovery_pointer: int
    rebuild_pointer: int
    overflow_held: int
    topic_id: str
    leader_epoch: int
    rebuild_due_ms: int = _INT64_MAX  # latest due time of what the rebuild pointer pins, -1 when that is nothing
    partitions: int = 0
    ledger_id: str = ""
    ledger_partitions: int = 0
    first_change: int = 0
    read: Marks = ()
    cuts: Cuts = NO_CUTS


@dataclass(frozen=True, slots=True)
class RenameMark:
    """Group `old` is being renamed to `new`, or was. `state`: what the marked commit said before."""

    old: str
    new: str
    state: str = ""


class GroupRenamedError(LedgerFormatError):
    """The group is being renamed, or was: who went on from here would lose or repeat records."""


def encode_mark(mark: RenameMark) -> str:
    """The metadata of a marked commit. Raises ValueError when Kafka would refuse it."""
    text = _encode_json({"tickover": _RENAMED_VERSION, "old": mark.old, "new": mark.new, "state": mark.state})
    return _checked(text)


def decode_mark(text: str) -> RenameMark | None:
    """The mark; None for any other commit. Raises LedgerFormatError for a damaged one."""
    if not text.startswith(f"{_MARK}{_RENAMED_VERSION},"):
        return None
    try:
        fields = json.loads(text)
        return RenameMark(_text(fields["old"]), _text(fields["new"]), _text(fields["state"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LedgerFormatError(f"a damaged mark of a renamed group: {text[:80]!r}") from error


def encode_metadata(state: CommitState) -> str:
    """The metadata to commit with offset `state.low`. Raises ValueError when Kafka would refuse it."""
    text = _encode_json(
        {
            "tickover": _VERSION if state.cuts else _VERSION_WITHOUT_CUTS,
            "watermark": state.watermark,
            "acknowledged": state.acknowledged,
            "block": state.block_offset,
            "recovery": state.recovery_pointer,
            "rebuild": state.rebuild_pointer,
            "overflow_held": state.overflow_held,
            "topic_id": state.topic_id,
            "leader_epoch": state.leader_epoch,
            "rebuild_due": state.rebuild_due_ms,
            "partitions": state.partitions,
            "ledger_id": state.ledger_id,
            "ledger_partitions": state.ledger_partitions,
            "first_change": state.first_change,
            "read": state.read,
            **({"cuts": state.cuts.pairs} if state.cuts else {}),
        }
    )
    return _checked(text)


def _checked(text: str) -> str:
    if len(text) > METADATA_BYTES_MAX:
        raise ValueError(f"commit metadata of {len(text)} bytes, more than {METADATA_BYTES_MAX}")
    return text


def decode_metadata(offset: int, text: str) -> CommitState | None:
    """The state committed with `offset`; None when the text is empty or not ours: somebody else committed.

    Raises NewerLedgerFormatError for a later version, GroupRenamedError for a mark, LedgerFormatError when it is ours
    but damaged: going on as if nothing had been committed would repeat or lose records.
    """
    if not text.startswith(_MARK):
        return None
    if (mark := decode_mark(text)) is not None:
        command = f"tickover group rename {mark.old} {mark.new}"
        raise GroupRenamedError(
            f"group {mark.old} is being renamed to {mark.new}, or was: run `{command}` until it says that it is done, "
            f"then start processes with TICKOVER_GROUP={mark.new} only"
        )
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LedgerFormatError(f"commit metadata that is not JSON: {text[:80]!r}") from error
    version = fields["tickover"]
    if type(version) is not int or version < 1:
        raise LedgerFormatError(f"commit metadata of version {version!r:.80}")
    if version > _VERSION:
        raise NewerLedgerFormatError(
            f"commit metadata of version {version} of a newer tickover; this one reads {_VERSION}: run the newer one"
        )
    try:
        due_ms, watermark_offset = fields["watermark"]
        return CommitState(
            low=offset,
            watermark=Position(_integer(due_ms), _integer(watermark_offset)),
            acknowledged=_integer(fields["acknowledged"]),
            block_offset=_integer(fields["block"]),
            recovery_pointer=_integer(fields["recovery"]),
            rebuild_pointer=_integer(fields["rebuild"]),
            overflow_held=_integer(fields["overflow_held"]),
            topic_id=_text(fields["topic_id"]),
            leader_epoch=_integer(fields["leader_epoch"]),
            rebuild_due_ms=_integer(fields["rebuild_due"]),
            partitions=_integer(fields.get("partitions", 0)),  # earlier programs wrote none
            ledger_id=_text(fields["ledger_id"]) if version > 1 else "",
            ledger_partitions=_integer(fields["ledger_partitions"]) if version > 1 else 0,
            first_change=_integer(fields["first_change"]) if version > 1 else 0,
            read=tuple(ReadMark(*map(_integer, mark)) for mark in fields.get("read", ())),
            cuts=_cuts(fields["cuts"]) if version >= _VERSION else NO_CUTS,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerFormatError(f"commit metadata with a field missing or wrong: {error!r}") from error


def _cuts(value: Any) -> Cuts:
    return Cuts(tuple((_integer(lane_from), _integer(log_from)) for lane_from, log_from in value))


def _integer(value: Any) -> int:
    if type(value) is not int or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise TypeError(f"{value!r:.80} is no 64-bit integer")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is no text")
    return value
