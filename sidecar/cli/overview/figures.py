"""Figures of the group as people read them: counts, times, bars, and one line for each process. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.model.times import duration

BARS: Final = " ▁▂▃▄▅▆▇█"
THOUSANDS: Final = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
REPLICA_COLUMNS: Final = (
    "replica", "state", "partitions", "lag", "wheel", "overflow", "emitted_per_s", "memory_mb", "version", "progress",
)  # fmt: skip

CAPACITY_COLUMNS: Final = ("policy", "targets", "rate_per_s", "peak", "peak_at", "fits", "last_is_late", "spread")

Document = Mapping[str, Any]


def short(count: int) -> str:
    """A count in at most five characters or so: 999, 1.2k, 1.20M."""
    for unit, name in THOUSANDS:
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def bars(values: Sequence[float | None]) -> str:
    """A bar for each value, as high as its part of the largest; a space where there is none, or nothing."""
    most = max((value for value in values if value is not None), default=0.0)
    if most <= 0:
        return " " * len(values)
    top = len(BARS) - 1
    return "".join(BARS[max(round(value / most * top), 1)] if value else " " for value in values)


def lateness(flow: Document) -> str:
    """p50 and p99 of what was emitted in a while."""
    percentiles = flow["lateness_ms"]
    if percentiles["p50"] is None:
        return "none emitted"
    return f"{duration(percentiles['p50'])} / {duration(percentiles['p99'])}"


def per_second(flow: Document, name: str) -> str:
    """Rate of the last minute."""
    rate = flow[name] / 60
    return short(round(rate)) if rate >= 10 else f"{rate:.1f}"


def digest(document: Document) -> dict[str, Any]:
    """The overview in a few lines; its lists are counted."""
    replicas, due, minute = document["replicas"], document["due"], document["last_minute"]
    return {
        "group": document["group"],
        "guarantee": document["guarantee"],
        "as_of": document["as_of_utc"],
        "replicas": {"answered": replicas["answered"], "silent": [one["replica"] for one in replicas["silent"]]},
        "partitions": document["partitions"],
        "held": document["held"],
        "due": {name: due[name] for name in ("overdue", "hour", "later")},
        "next_due": document["next_due_utc"],
        "oldest_overdue_ms": document["oldest_overdue_ms"],
        "last_minute": minute,
        "last_hour": {name: count for name, count in document["hour"].items() if name != "minutes"},
        "breakers": [one["target"] for one in document["breakers"]],
        "suspended": [one["target"] for one in document["suspended"]],
        "rebuilds": [f"{one['topic']}/{one['partition']}" for one in document["rebuilds"]],
        "problems": len(document["problems"]),
    }


def problem_lines(document: Document) -> list[str]:
    """A line for each problem, the worst first, with the command that mends it."""
    return [
        f"{one['level']}: {one['text']}" + (f" Fix: {one['fix']}" if one["fix"] else "") for one in document["problems"]
    ]


def replica_line(item: Document) -> dict[str, Any]:
    """One line of the list of processes; of a silent one little is known."""
    if item["state"] == "silent":
        last_sign = item.get("last_sign_utc") or item["last_sign"]
        return {"replica": item["replica"], "state": "silent", "progress": f"last sign {last_sign}"}
    return {
        **{name: item[name] for name in ("replica", "state", "lag", "version")},
        "partitions": item["partitions"]["assigned"],
        "wheel": item["held"]["wheel"],
        "overflow": item["held"]["overflow"],
        "emitted_per_s": per_second(item["last_minute"], "emitted"),
        "memory_mb": round(item["memory_bytes"] / 1_000_000),
        "progress": progress(item),
    }


def capacity_line(item: Document) -> dict[str, Any]:
    """One line of what is due against rates."""
    spread_ms = item["spread_ms"]
    return {
        **{name: item[name] for name in ("policy", "targets")},
        "rate_per_s": round(item["rate"], 3),
        "peak": item["peak"]["held"],
        "peak_at": item["peak"].get("minute_utc") or item["peak"]["minute"],
        "fits": "yes" if item["fits"] else "no" if item["is_exact"] else "perhaps not",
        "last_is_late": None if item["fits"] else duration(item["late_ms"]),
        "spread": "none would do" if spread_ms is None else duration(spread_ms) if spread_ms else None,
    }


def progress(item: Document) -> str | None:
    """How far recovery and rebuilds of a process are; None where there are none."""
    recovering = item["recovery"]["partitions"]
    told = [f"recovers {recovering} partitions"] if recovering else []
    for one in item["rebuilds"]:
        share = one["ledger_read_share"]
        read = "waits" if share is None else f"{share:.0%}"
        told.append(f"rebuilds {one['topic']}/{one['partition']}: {one['done']} of {one['held']}, {read}")
    return "; ".join(told) or None
