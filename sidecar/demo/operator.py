"""Acts by REST of somebody who is there while the demo runs, so that each screen of the console has something to show.

    schedules, a pause, a campaign, a bulk change, a newer policy -> words about failures, a redrive -> taken back

In a thread of its own: the traffic goes on while an answer is waited for. What is sent here goes to targets that the
judge doesn't look at, but for redriven letters: those are announced to it before they are sent.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

import httpx

from sidecar.demo.messages import redriven
from sidecar.demo.oracle import MESSAGE_ID, Expected
from sidecar.demo.setup import CAMPAIGN, RATE_LATER, DemoTopics, policies_text

log = logging.getLogger(__name__)

CALLER: Final = {"Tickover-Client": "demo"}
ANSWER_S: Final = 30.0
LOOK_S: Final = 0.5
LOOKS_MAX: Final = 240  # at one job until it is done
EVERY_FIVE_SECONDS: Final = "*/5 * * * * *"
MONDAYS: Final = "0 9 * * MON"
CAMPAIGN_MESSAGES: Final = 300
CANCELLED_MESSAGES: Final = 60
FAXES: Final = 3
CAMPAIGN_MS: Final = 20 * 60_000
LETTERS_MIN: Final = 3
LETTERS_MAX: Final = 20
NOTES: Final = {
    "attempts_exhausted": {
        "state": "known",
        "note": "The payment service answers late. Redrive once it is well.",
    },
    "not_retryable": {"state": "resolved", "note": "Orders without an amount: mended in the shop, version 4.2."},
}

Document = dict[str, Any]


class NotDoneError(Exception):
    """A call was refused or lost; the text says which and why."""


class Operator:
    """Somebody at the REST address `url`. Announces in `announced` what comes of redrives before it runs them."""

    def __init__(
        self, url: str, place: tuple[DemoTopics, str], policies: Path, announced: SimpleQueue[Expected]
    ) -> None:
        self._client = httpx.Client(base_url=url, headers=CALLER, timeout=ANSWER_S, trust_env=False)
        self._topics, self._prefix = place
        self._policies = policies
        self._announced = announced
        self._leaving = Event()
        self._gone = Event()
        self._etags: dict[str, str] = {}  # of schedules, by name
        self._thread = Thread(target=self._work, name="operator", daemon=True)

    def start(self) -> None:
        """Begin to act."""
        self._thread.start()

    def leave(self) -> None:
        """Ask for the end: what would be held for long is taken back. `is_there` says until when."""
        self._leaving.set()

    @property
    def is_there(self) -> bool:
        """Whether something is still being done."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End at once, with nothing taken back. Twice is harmless."""
        self._gone.set()
        self._leaving.set()
        self._thread.join(ANSWER_S)
        self._client.close()

    def _work(self) -> None:
        for act in (self._schedule, self._pause, self._send_campaign, self._cancel_some, self._change_policy):
            self._done(act)
        while not self._leaving.wait(LOOK_S) and not self._done(self._look_after_failures):
            pass
        self._leaving.wait()
        for act in (self._resume, self._unschedule, self._cancel_rest):
            self._done(act)

    def _done(self, act: Callable[[], bool]) -> bool:
        """Whether it was done, or will never be."""
        try:
            return self._gone.is_set() or act()
        except NotDoneError as error:
            log.warning("demo operator", extra={"error": str(error)})
            return True

    # --- acts -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> bool:
        for campaign, cron, paused in (("digest", EVERY_FIVE_SECONDS, False), ("weekly", MONDAYS, True)):
            name = f"{self._prefix}{campaign}"
            body = {"name": name, "cron": cron, "paused": paused, "value": campaign, "headers": {CAMPAIGN: campaign}}
            body |= {"source": self._topics.reminders, "target": self._topics.newsletter}
            answer = self._call("PUT", f"/v1/schedules/{name}", body, {"If-None-Match": "*"})
            self._etags[name] = answer.headers["etag"]
        return True

    def _pause(self) -> bool:
        self._call("PUT", f"/v1/pauses/target/{self._topics.fax}", {"reason": "the fax machine is out of paper"})
        self._send(self._topics.fax, "fax", FAXES, 1_000)
        return True

    def _send_campaign(self) -> bool:
        """More at one time than the policy's rate lets through: the forecast says so."""
        self._send(self._topics.newsletter, "spring", CAMPAIGN_MESSAGES, CAMPAIGN_MS)
        self._send(self._topics.newsletter, "autumn", CANCELLED_MESSAGES, 2 * CAMPAIGN_MS)
        return True

    def _cancel_some(self) -> bool:
        return self._cancel({"target": self._topics.newsletter, "header": f"{CAMPAIGN}=autumn"})

    def _change_policy(self) -> bool:
        self._policies.write_text(policies_text(self._topics, self._prefix, RATE_LATER), encoding="utf-8")
        return True

    def _look_after_failures(self) -> bool:
        """Say what is known of each kind of failure, and send some letters again, once there are enough."""
        topic = self._topics.orders_dead
        found = self._ask("GET", f"/v1/dead-letters/groups?topic={topic}")["items"]
        groups = {group["reason"]: group for group in found}
        if set(NOTES) - set(groups) or groups["attempts_exhausted"]["open"] < LETTERS_MIN:
            return False
        for reason, words in NOTES.items():
            self._call("PUT", f"/v1/dead-letters/{topic}/groups/{groups[reason]['fingerprint']}", words)
        self._redrive()
        return True

    def _redrive(self) -> None:
        found = self._ask(
            "GET",
            f"/v1/dead-letters?topic={self._topics.orders_dead}&reason=attempts_exhausted&open=true&payload=true"
            f"&limit={LETTERS_MAX}",
        )["items"]
        letters = {letter["position"]: _message(letter) for letter in found}
        body = {"topic": self._topics.orders_dead, "letters": sorted(letters), "confirm_all": True}
        body |= {"rate": 10, "ramp": "1s", "watch": "2s"}
        path = f"/v1/redrives/{self._ask('POST', '/v1/redrives', body)['id']}"
        planned = self._until(path, "planned")
        if planned["waits_for"] or planned["planned"]["letters"] != len(letters):
            return  # somebody else must approve it, or has sent some meanwhile: then it may stay a plan
        now_ms = time.time_ns() // 1_000_000
        for place, message in letters.items():
            self._announced.put(redriven(message, place, planned["id"], now_ms, self._topics))
        self._call("POST", f"{path}/run")
        self._until(path, "done")

    # --- the end --------------------------------------------------------------------------------------------------

    def _resume(self) -> bool:
        self._call("DELETE", f"/v1/pauses/target/{self._topics.fax}")
        return True

    def _unschedule(self) -> bool:
        for name, etag in self._etags.items():
            self._call("DELETE", f"/v1/schedules/{name}", None, {"If-Match": etag})
        return True

    def _cancel_rest(self) -> bool:
        return self._cancel({"target": self._topics.newsletter})

    # --- calls ----------------------------------------------------------------------------------------------------

    def _send(self, target: str, campaign: str, count: int, delay_ms: int) -> None:
        message: Document = {"target": target, "source": self._topics.reminders, "headers": {CAMPAIGN: campaign}}
        message |= {"value": "news", "deliver_at": time.time_ns() // 1_000_000 + delay_ms}
        messages = [
            {**message, "id": f"{campaign}-{number}", "key": f"customer-{number}"} for number in range(1, count + 1)
        ]
        self._call("POST", "/v1/messages:batch", {"messages": messages})

    def _cancel(self, selection: Mapping[str, str]) -> bool:
        path = f"/v1/changes/{self._ask('POST', '/v1/changes', {'action': 'cancel', 'filter': selection})['id']}"
        planned = self._until(path, "planned")
        if planned["planned"]["messages"] and not planned["waits_for"]:
            self._call("POST", f"{path}/run", {"token": planned["token"]})
            self._until(path, "done")
        return True

    def _until(self, path: str, state: str) -> Document:
        """The job once it has come to this state. Raises NotDoneError."""
        job = self._ask("GET", path)
        looks = 1
        while job["state"] != state and looks < LOOKS_MAX and not self._gone.wait(LOOK_S):
            job = self._ask("GET", path)
            looks += 1
        if job["state"] == state:
            return job
        raise NotDoneError(f"{path} is {job['state']}, not {state}: {job['reason']}")

    def _ask(self, method: str, path: str, body: object = None) -> Document:
        document: Document = self._call(method, path, body).json()
        return document

    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise NotDoneError(f"{method} {path}: {str(error) or type(error).__name__}") from None
        if not answer.is_success:
            raise NotDoneError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer


def _message(letter: Mapping[str, Any]) -> str:
    """The demo's name of the message that a dead letter is of."""
    return str(dict(letter["payload"]["headers"])[MESSAGE_ID])
