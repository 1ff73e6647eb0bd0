"""A report as one HTML page: a plot (SVG, inside the page) above the table. No script, nothing fetched."""

import html
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Final

Row = Mapping[str, Any]
Draw = Callable[[Any, Sequence[Row]], None]

ROWS_SHOWN_MAX: Final = 200
SERIES_MAX: Final = 8
LABEL_LENGTH_MAX: Final = 40
SIZE_INCHES: Final = (10.0, 4.2)
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.4rem } svg { width: 100%; height: auto } p { color: #57606a }
table { border-collapse: collapse; font-size: 13px; margin-top: 1rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d8dee4; text-align: left; white-space: nowrap }
td.number { text-align: right; font-variant-numeric: tabular-nums }
"""


def page(title: str, words: str, rows: Sequence[Row], draw: Draw) -> str:
    """The page; `draw` is given matplotlib's axes and the rows. Everything that came from outside is escaped."""
    figure = plot(rows, draw) if rows else "<p><strong>No rows: nothing of this kind was seen.</strong></p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1><p>{html.escape(words)}</p>"
        f"{figure}{table(rows)}</body></html>\n"
    )


def plot(rows: Sequence[Row], draw: Draw, form: str = "svg") -> str:
    """The figure as SVG text."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    draw(axes, rows)
    text = StringIO()
    figure.savefig(text, format=form, metadata={"Date": None})
    return text.getvalue().partition("?>")[2].partition(">")[2]


def table(rows: Sequence[Row]) -> str:
    """The first rows; columns that end in `_ms` and hold times are shown as times."""
    if not rows:
        return ""
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name.removesuffix('_ms') if is_time(name) else name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(cell(name, row[name]) for name in names) + "</tr>" for row in rows[:ROWS_SHOWN_MAX])
    more = f"<p>The first {ROWS_SHOWN_MAX} of {len(rows)} rows.</p>" if len(rows) > ROWS_SHOWN_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def is_time(name: str) -> bool:
    """Whether a column of this name holds points in time."""
    return name in ("minute_ms", "first_ms", "last_ms")


def cell(name: str, value: Any) -> str:
    """One field of the table."""
    if value is None:
        return "<td></td>"
    if is_time(name):
        return f"<td>{html.escape(time_text(value))}</td>"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{html.escape(str(value))}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
    return f'<td class="number">{text}</td>'


def time_text(time_ms: int) -> str:
    """UTC, to the minute; a number that is no time as it is."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def _by(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Rows of the first few values of a column."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if row[name] in found or len(found) < SERIES_MAX:
            found.setdefault(row[name], []).append(row)
    return found


def _minutes(rows: Sequence[Row]) -> list[datetime]:
    return [datetime.fromtimestamp(row["minute_ms"] / 1000, UTC) for row in rows]


def _label(text: Any) -> str:
    # matplotlib reads what stands between dollars as a formula.
    return str(text)[:LABEL_LENGTH_MAX].replace("$", r"\$")


def draw_funnel(axes: Any, rows: Sequence[Row]) -> None:
    """Per policy and attempt a bar: rescued below, failed above."""
    rows = [row for row in rows if row["delivered"]][:40]
    labels = [f"{_label(row['policy'])}, attempt {row['attempt']}" for row in rows]
    places = range(len(rows))
    rescued = [row["rescued"] for row in rows]
    again = [min(row["failed"], row["delivered"]) for row in rows]
    axes.bar(places, rescued, label="rescued", color="#2da44e")
    axes.bar(places, again, bottom=rescued, label="failed again", color="#cf222e")
    axes.set_xticks(list(places), labels, fontsize=8, rotation=20, ha="right", rotation_mode="anchor")
    axes.set_ylabel("deliveries")
    axes.legend()


def draw_lateness(axes: Any, rows: Sequence[Row]) -> None:
    """Median and 99th percentile over time, per tier."""
    for tier, series in _by(rows, "tier").items():
        times = _minutes(series)
        [line] = axes.plot(times, [row["p50"] for row in series], marker=".", label=f"{_label(tier)} p50")
        slow = [row["p99"] for row in series]
        axes.plot(times, slow, marker=".", linestyle="--", color=line.get_color(), label=f"{_label(tier)} p99")
    axes.set_ylabel("lateness, ms")
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_triage(axes: Any, rows: Sequence[Row]) -> None:
    """The most frequent kinds of failure; new ones in red."""
    top = sorted(rows, key=lambda row: row["records"])[-15:]
    labels = [_label(f"{row['error_class'] or row['reason']} {(row['fingerprint'] or '')[:6]}") for row in top]
    axes.barh(
        range(len(top)), [row["records"] for row in top], color=["#cf222e" if row["new"] else "#6e7781" for row in top]
    )
    axes.set_yticks(range(len(top)), labels, fontsize=8)
    axes.set_xlabel("records (red: new)")


def draw_herd(axes: Any, rows: Sequence[Row]) -> None:
    """Due per minute to come, per target."""
    for target, series in _by(rows, "target").items():
        axes.step(_minutes(series), [row["due"] for row in series], where="post", label=_label(target))
    over = [row for row in rows if row["over"]]
    axes.plot(_minutes(over), [row["due"] for row in over], "v", color="#cf222e", label="over capacity")
    axes.set_ylabel("due per minute")
    axes.legend()


def draw_storms(axes: Any, rows: Sequence[Row]) -> None:
    """Retries per minute and target, storms marked."""
    for target, series in _by(rows, "target").items():
        axes.plot(_minutes(series), [row["retries"] for row in series], marker=".", label=_label(target))
    stormy = [row for row in rows if row["storm"]]
    axes.plot(_minutes(stormy), [row["retries"] for row in stormy], "v", color="#cf222e", label="storm")
    axes.set_ylabel("retries per minute")
    axes.legend()


def draw_forecast(axes: Any, rows: Sequence[Row]) -> None:
    """Messages due per minute: those held, and on top those expected to arrive."""
    times = _minutes(rows)
    layers = ([row["held"] for row in rows], [row["arriving"] for row in rows])
    axes.stackplot(times, *layers, labels=("held", "expected to arrive"), colors=("#0969da", "#9ec5fe"))
    axes.set_ylabel("due per minute")
    axes.legend()
