"""Logs: one JSON object per line (or text for people) on stderr, for our own loggers and libraries'.

The rule: keys, values and header values of records never stand in a log, nor do secrets. It is kept here, not
by care at each call: fields with such names are replaced, bytes are counted, not shown, and an object that
isn't plain data is named by its type, so that neither a client's message nor a held record is printed. A number is
always shown: `keys=5` says how many.
"""

import logging
import re
import sys
import textwrap
import threading
from collections.abc import Iterable, Mapping
from datetime import date
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import FunctionType, TracebackType
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from sidecar.model.foreign_text import LINES, visible, visible_json
from sidecar.settings.settings import LogSettings

REDACTED: Final = "[redacted]"
TEXT_MAX: Final = 8_192  # of one field; longer ones are cut
ITEMS_MAX: Final = 100  # of one list or mapping
DEPTH_MAX: Final = 4
FORBIDDEN_NAME: Final = re.compile(
    r"(.*[_.-])?(keys?|key_prefix|values?|headers?|trailers?|payloads?|body|password|passphrase|token|secret|authorization|cookie)",
    re.IGNORECASE,
)
# What pydantic puts into the text of its errors: the very input that was refused.
PYDANTIC_INPUT: Final = re.compile(r"input_value=.*?, input_type=", re.DOTALL)
REDACTED_INPUT: Final = "input_value=[redacted], input_type="
# Types of libraries whose text says nothing about records.
SHOWN_TYPES: Final = frozenset({"KafkaError", "Job", "URL", "IntervalTrigger"})
CLIENT: Final = "librdkafka"
# Libraries that say more than an operator wants at info; their warnings pass. Housekeeping silences its scheduler.
CHATTY: Final = ("httpcore", "httpx", "uvicorn.access")


def configure_logs(settings: LogSettings, stream: TextIO | None = None, process: int = 0) -> None:
    """Send all logging of the process, structlog's included, to `stream` (stderr). May be called again. `process`: its
    number among those of a supervisor, in every line; 0: there is none.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if process:
        shared.append(partial(number_line, process))
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(sanitise_arguments)
    handler.addFilter(soften_client)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, drop_colours],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_ending(settings, handler),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    set_level(settings.level)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            redact,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def log_uncaught() -> None:
    """Log what nobody catches, in any thread, and what Python says of errors that it ignores: such lines are JSON, too.

    An error in a finalizer is ignored. Ctrl-C there is told otherwise: whoever raised it looks whether it was heard.
    """
    log = logging.getLogger(__name__)

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("an error that nobody expects", exc_info=(kind, error, trace))

    def uncaught_in_thread(ended: threading.ExceptHookArgs) -> None:
        if (error := ended.exc_value) is not None and ended.exc_type is not SystemExit:
            name = ended.thread.name if ended.thread is not None else ""
            trace = (ended.exc_type, error, ended.exc_traceback)
            log.error("a thread has ended by an error that nobody expects", extra={"where": name}, exc_info=trace)

    def ignored(told: "sys.UnraisableHookArgs") -> None:
        if (error := told.exc_value) is not None and not isinstance(error, KeyboardInterrupt):
            named = told.object if isinstance(told.object, FunctionType) else type(told.object)
            about = {"where": named.__qualname__, "when": told.err_msg or ""}
            trace = (told.exc_type, error, told.exc_traceback)
            log.warning("an error was ignored", extra=about, exc_info=trace)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, uncaught_in_thread, ignored


def set_level(name: str) -> None:
    """Log from this level on (`debug`, `info`, `warning`, `error`). May be called while the process runs."""
    level = logging.getLevelNamesMapping()[name.upper()]
    logging.getLogger().setLevel(level)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))


def _ending(settings: LogSettings, handler: "logging.StreamHandler[TextIO]") -> Iterable[Processor]:
    """The last steps: exceptions to text, redaction, rendering."""
    yield structlog.processors.format_exc_info
    yield redact
    if settings.format == "json":
        yield structlog.processors.EventRenamer("message")
        yield structlog.processors.JSONRenderer(ensure_ascii=False)
        yield seen_json
        return
    yield seen_text
    # The plain formatter, since others print the local variables of each frame, and with them records.
    yield structlog.dev.ConsoleRenderer(
        colors=handler.stream.isatty(),
        timestamp_key="time",
        exception_formatter=structlog.dev.plain_traceback,
    )


def number_line(process: int, _logger: Any, _method: str, event: EventDict) -> EventDict:
    """The event with the number of this process."""
    return {**event, "process": process}


def drop_colours(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Leave out uvicorn's second copy of its message, which is for terminals."""
    event.pop("color_message", None)
    return event


def seen_json(_logger: Any, _method: str, line: Any) -> str:
    """The rendered line with escapes for what does something to a terminal, or ends a line there."""
    return visible_json(line)


def seen_text(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Every text with escapes for what does something to a terminal; lines of what failed are indented, so that none of
    them looks like a line of the log.
    """
    shown: EventDict = {}
    for name, value in event.items():
        if isinstance(value, str) and name in ("exception", "stack"):
            shown[name] = textwrap.indent(visible(value, LINES), "    ")
        else:
            shown[visible(name)] = visible(value) if isinstance(value, str) else value
    return shown


def redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace what must not be shown in every field of a log event."""
    return {name: _field(name, value) for name, value in event.items()}


def _field(name: str, value: object) -> object:
    if name in ("exc_info", "stack_info"):  # the logging system's own, turned into text later
        return value
    if name == "exception":
        return clean(PYDANTIC_INPUT.sub(REDACTED_INPUT, str(value)))
    return REDACTED if is_forbidden(name, value) else clean(value)


def is_forbidden(name: object, value: object) -> bool:
    """Whether a field of this name must not show this value: a text, bytes, or something that may hold some."""
    return not isinstance(value, int | float | None) and FORBIDDEN_NAME.fullmatch(str(name)) is not None


def soften_client(record: logging.LogRecord) -> bool:
    """Make librdkafka's errors warnings; always lets the record pass.

    It calls each lost connection an error, and a producer critical that another of its id has taken over from, which
    is how transactions are recovered. What needs somebody tickover says itself, when it can't go on.
    """
    if record.name == CLIENT and record.levelno > logging.WARNING:
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return True


def sanitise_arguments(record: logging.LogRecord) -> bool:
    """Clean the arguments of a `%s` log call before they are formatted; always lets the record pass."""
    if isinstance(record.msg, dict) and hasattr(record, "_logger"):
        return True  # a structlog event on its way to the formatter, which redacts it
    if not isinstance(record.msg, str):
        record.msg = str(clean(record.msg))
    if isinstance(record.args, Mapping):
        record.args = {
            name: REDACTED if is_forbidden(name, value) else clean(value) for name, value in record.args.items()
        }
    elif record.args:
        record.args = tuple(clean(value) for value in record.args)
    return True


def clean(value: object, depth: int = 0) -> object:
    """A copy of `value` that may be shown: plain data, bounded, no bytes, no forbidden fields."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + f"... ({len(value)} characters)"
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case BaseException():
            return clean(PYDANTIC_INPUT.sub(REDACTED_INPUT, str(value)))
        case PurePath() | date() | Enum():
            return str(value)
        case _ if type(value).__name__ in SHOWN_TYPES:
            return clean(str(value))
        case tuple() if type(value).__str__ is not object.__str__:
            return str(value)  # a named place, such as a lane
        case _ if depth >= DEPTH_MAX:
            return f"<{type(value).__name__}>"
        case tuple() if hasattr(value, "_asdict"):
            return clean(value._asdict(), depth + 1)
        case Mapping():
            return {
                str(name)[:TEXT_MAX]: REDACTED if is_forbidden(name, item) else clean(item, depth + 1)
                for name, item in list(value.items())[:ITEMS_MAX]
            }
        case tuple():
            return tuple(clean(item, depth + 1) for item in value[:ITEMS_MAX])
        case list() | set() | frozenset():
            return [clean(item, depth + 1) for item in list(value)[:ITEMS_MAX]]
        case _:
            return f"<{type(value).__name__}>"
