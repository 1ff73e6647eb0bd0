"""The overflow's limits, so small that a run of a minute meets each of them many times.

A limit stands in the module that uses it, and others import it by name: each of them is given the small one.
"""

import sys
from typing import Any, Final

import pytest

from sidecar.engine.storage import overflow_worker, rebuild
from sidecar.overflow import (
    chunk,
    chunk_reader,
    chunk_writer,
    id_index,
    keys,
    read_ahead,
    rebuild_store,
    redis_overflow,
    scripts,
    tidying,
)

COARSE: Final = keys.COARSE._replace(slot_ms=40_000)
FINE: Final = keys.FINE._replace(slot_ms=4_000)
REDO: Final = scripts.REDO.replace(f" {keys.COARSE.slot_ms}", f" {COARSE.slot_ms}").replace(
    f" {keys.FINE.slot_ms}", f" {FINE.slot_ms}"
)

LIMITS: Final[dict[Any, dict[str, Any]]] = {
    keys: {"COARSE": COARSE, "FINE": FINE, "LEVELS": (COARSE, FINE), "INDEX_SHARDS": 3},
    chunk: {"RECORDS_MAX": 4, "BYTES_MAX": 1_000},
    chunk_writer: {
        "CASCADE_AHEAD_MS": COARSE.slot_ms,
        "BATCH_RECORDS_MAX": 6,
        "BATCH_BYTES_MAX": 2_000,
        "BATCH_SLOTS_MAX": 2,
    },
    tidying: {
        "CASCADE_RECORDS_MAX": 10,
        "CASCADE_BYTES_MAX": 4_000,
        "ADD_CHUNKS_MAX": 2,
        "LOOK_MS": 500,
        "SLOTS_PER_STEP": 2,
    },
    chunk_reader: {"HEADERS_PER_PAGE": 3, "STRUCK_PER_COMMAND": 2},
    redis_overflow: {
        "READ_AHEAD_RECORDS_MAX": 32,
        "READ_AHEAD_RECORDS_MIN": 8,
        "READ_AHEAD_BYTES_MAX": 8_000,
        "READ_ON_MS": 20_000,
    },
    read_ahead: {
        "BLOBS_PER_PAGE_MAX": 2,
        "BLOB_BYTES_PER_PAGE_MAX": 1_000,
        "KEY_DUES_MS": 1 << 14,
        "KEY_OFFSETS": 1 << 6,
    },
    id_index: {"FIND_MAX": 2, "SWEPT_PER_STEP": 3},
    overflow_worker: {"PROMOTION_RECORDS_MAX": 6, "CHANGES_PER_JOB_MAX": 4},
    scripts: {"REDO": REDO},
    rebuild_store: {"CLEAR_PER_STEP_MAX": 2},
    rebuild: {
        "BUNCH_RECORDS_MAX": 6,
        "BUNCH_BLOCKS_MAX": 2,
        "LEDGER_RECORDS_PER_STEP_MAX": 20,
        "READ_BACK_RECORDS_MAX": 7,
    },
}


def set_small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every module of the engine the small limits for one test."""
    modules = [module for name, module in sys.modules.items() if name.startswith("sidecar.")]
    for owner, limits in LIMITS.items():
        for name, small in limits.items():
            usual = getattr(owner, name)
            for module in modules:
                if vars(module).get(name) is usual:
                    monkeypatch.setattr(module, name, small)
