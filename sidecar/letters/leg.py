"""The work on one redrive by one process: count the letters (planning), or send them (a canary, or the run).

Crash-only. To begin is to take over: the plan's producer fences off whoever came before, then the progress is read past
everything that is in the topic, and the letters from its positions on. A failure that nobody understands ends in the
same place: begin anew. Letters and progress are one transaction, so nothing is sent twice or left out.
"""

import logging
import threading
from typing import Final

from confluent_kafka import KafkaException

from sidecar.letters.legwork import Legwork, Surroundings
from sidecar.letters.letter_log import LettersUnavailable
from sidecar.letters.plan import State
from sidecar.letters.shipment import ShipmentFailed, Shipping, TakenOver

FAILURES_MAX: Final = 5  # in a row; then the lease runs out, and somebody tries again later

log = logging.getLogger("tickover.redrive")


class Leg:
    """`run` returns when the leg has ended, was taken over, or the process stops."""

    def __init__(self, plan_id: str, begin: State | None, canary: int, here: Surroundings) -> None:
        """`begin`: CANARY or RUNNING for a new leg; None: go on with what somebody began."""
        self._plan_id = plan_id
        self._begin = begin
        self._canary = canary
        self._here = here
        self.begun = threading.Event()  # set when the leg stands in the log, or never will

    def run(self) -> None:
        try:
            self._run()
        finally:
            self.begun.set()

    def _run(self) -> None:
        failures = 0
        while failures < FAILURES_MAX:
            try:
                self._attempt()
                return
            except TakenOver:
                log.info("a redrive was taken over", extra={"plan": self._plan_id})
                return
            except (ShipmentFailed, LettersUnavailable, KafkaException) as error:
                failures += 1
                log.warning("a redrive begins anew", extra={"plan": self._plan_id, "error": str(error)})
                if self._here.wait(min(2**failures, 10)):
                    return
        log.error("a redrive is given up for now", extra={"plan": self._plan_id})

    def _attempt(self) -> None:
        here = self._here
        transactional_id = f"tickover.{here.group}.redrive.{self._plan_id}"
        shipping = Shipping(here.client, transactional_id, here.log.topic)
        try:
            shipping.init()
            here.log.catch_up()
            redrive = here.log.get(self._plan_id)
            if redrive is None:
                raise LettersUnavailable("the plan is gone")
            work = Legwork(redrive, shipping, here)
            try:
                if self._begin is not None:
                    work.begin(self._begin, self._canary)
                    self._begin = None
                here.log.catch_up()
                self.begun.set()
                work.go_on()
            finally:
                shipping = work.shipping
                work.close()
        finally:
            shipping.close()
