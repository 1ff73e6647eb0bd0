"""Sources that the brokers refused this process the right to read: asked about again until it is certain.

Rights reach the brokers one after the other, and a broker that has just started may not have them yet. So one refusal
proves nothing, and one permission behind it neither. A doubt ends when all answers of `SURE_MS` were alike.
"""

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from sidecar.ledger.topic import LedgerUnavailable
from sidecar.model.ports import is_over

SURE_MS: Final = 5_000  # rights reach all brokers in less
ASK_MS: Final = 500  # between an answer and the next question

log = logging.getLogger(__name__)


class SourceUnreadable(Exception):
    """A source that was read here may not be read any more: what is held of it would wait for ever, untold."""


class Questions(Protocol):
    """Questions to the brokers, which another thread asks."""

    def may_read(self, topic: str) -> Future[bool]:
        """Whether this process may read a source; the future may raise LedgerUnavailable."""


@dataclass(slots=True)
class Doubt:
    """Whether a source may be read, as far as it is known: `may` in all answers since then. Epoch milliseconds."""

    words: str  # of the brokers
    since_ms: int
    ask_at_ms: int
    may: bool = False
    answer: Future[bool] | None = None


class SourceRights:
    """Owned by the engine's thread."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._doubts: dict[str, Doubt] = {}

    def refused(self, topic: str, words: str, now_ms: int) -> None:
        """The brokers refuse it, for now: only a client that is sure of it says so again."""
        if (doubt := self._doubts.get(topic)) is None:
            log.warning("no right to read a source: asking again", extra={"topic": topic, "error": words})
            self._doubts[topic] = Doubt(words, now_ms, now_ms)
        elif doubt.may:
            doubt.may, doubt.since_ms = False, now_ms

    def step(self, now_ms: int) -> None:
        """Ask, and take answers. Raises SourceUnreadable when it is certain."""
        for topic, doubt in list(self._doubts.items()) if self._doubts else ():
            if doubt.answer is None:
                if is_over(now_ms, doubt.ask_at_ms, ASK_MS):
                    doubt.answer = self._questions.may_read(topic)
            elif doubt.answer.done():
                answer, doubt.answer, doubt.ask_at_ms = doubt.answer, None, now_ms + ASK_MS
                if not isinstance(answer.exception(), LedgerUnavailable):
                    self._note(topic, doubt, answer.result(), now_ms)

    def _note(self, topic: str, doubt: Doubt, may: bool, now_ms: int) -> None:
        if may != doubt.may:
            doubt.may, doubt.since_ms = may, now_ms
        elif not is_over(now_ms, doubt.since_ms + SURE_MS, SURE_MS):
            pass  # it may be so, and isn't certain yet
        elif may:
            log.info("a source may be read again", extra={"topic": topic})
            del self._doubts[topic]
        else:
            raise SourceUnreadable(f"no right to read a source: {doubt.words}; `tickover doctor` says more")
