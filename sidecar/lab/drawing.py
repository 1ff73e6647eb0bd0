"""The laboratory's rows as a plot: one bar to a case, its parts side by side as time goes."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from sidecar.lab.latency import PARTS

COLOURS: Final = ("#8c959f", "#0969da", "#8250df", "#bf8700", "#2da44e")


def missing_library() -> str | None:
    """Advice on how to install the library that a plot needs; None when it is installed."""
    if find_spec("matplotlib") is not None:
        return None
    return "a plot needs matplotlib: pip install 'tickover[pipeline]', or in a checkout: make setup-pipeline"


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """SVG."""
    from pipeline.reports.html_report import plot

    return plot(rows, _bars)


def _bars(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(rows))
    reached = [0.0] * len(rows)
    for name, colour in zip(PARTS, COLOURS, strict=True):
        # A difference of two means may come out a little below zero: no bar goes backwards.
        lengths = [max(row[name] or 0.0, 0.0) for row in rows]
        axes.barh(places, lengths, left=reached, label=name.removesuffix("_ms").replace("_", " "), color=colour)
        reached = [start + length for start, length in zip(reached, lengths, strict=True)]
    axes.plot([row["produce_p50_ms"] for row in rows], places, "|", color="#cf222e", markersize=10, label="produce p50")
    labels = [
        f"{row['cluster']}: acks={row['acks']}, {row['replicas']} replicas, linger {row['linger_ms']}, "
        f"batch {row['batch_size']}"
        for row in rows
    ]
    axes.set_yticks(list(places), labels, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("mean time after produce(), ms")
    axes.legend(fontsize=7)
