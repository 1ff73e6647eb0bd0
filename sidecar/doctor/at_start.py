"""Findings of the doctor that a process tells by itself: why brokers don't answer its start, which rights it lacks."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Final

from sidecar.doctor.facts import Finding
from sidecar.doctor.kafka import missing_rights, why_unreachable
from sidecar.doctor.rights import is_about_rights
from sidecar.kafka.background import in_background
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

EARLY_S: Final = 2.0  # brokers that have not answered by then are told of: the first try takes longer
RIGHTS_S: Final = 8.0  # how long brokers are asked which rights are missing


@contextmanager
def told_early(tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell`, in a thread, where what is done meanwhile takes longer than `EARLY_S`."""
    timer = threading.Timer(EARLY_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tell_unreachable(settings: Settings, error: str = "") -> str:
    """Say in the log why brokers don't answer, and what to do; where they do by now, the error. Returns the kind of
    cause, as far as there is one: everybody may be told it, as it names no host.
    """
    if (found := why_unreachable(settings)) is not None:
        log.warning("the start waits for Kafka", extra={"error": found.finding.what, "fix": found.finding.fix})
        return found.cause
    if error:
        log.warning("the start waits for Kafka", extra={"error": error})
    return ""


def tell_rights(settings: Settings, error: BaseException) -> None:
    """Say in the log which rights are missing and what gives them, where the error is about one."""
    if not is_about_rights(error):
        return

    def look() -> list[Finding]:
        return missing_rights(settings)

    asking = in_background(look)
    if wait((asking,), RIGHTS_S).done and asking.exception() is None:
        for finding in asking.result():
            log.error("a right is missing", extra={"finding": finding.what, "fix": finding.fix})
