"""Clients that have lost their brokers for good, while others of the process reach them.

A broker of a cluster that has just started as a whole may know of no broker yet, not even of itself, and answers a
question for metadata with none. librdkafka then lets go of every broker it knows, those of `bootstrap.servers` too, and
may never look for one again (its issue 5301, open with 2.16). Whatever the reason: a client that reaches no broker for
`LOST_S`, while one that was just made does each time, is of no use any more. An admin client is made anew. A consumer
or a producer says so to its owner by its next call, and who doesn't take another ends as by any fatal error.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from policies.kafka_clients import AdminClient, Client, living

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
LOST_S: Final = 30.0
ANSWER_S: Final = 1.0  # for who may be in the middle of its work
FRESH_ANSWER_S: Final = 10.0  # for who has to connect first
CALM_LOOKS: Final = 3  # in a row without a finding, since a consumer tells with its owner's next call: enough is seen


class LostClients:
    """`suspect` is for any thread, `look` for one."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        monotonic_s: Callable[[], float],
        clients: Callable[[], list[Client]] = living,
    ) -> None:
        self._settings = dict(settings)
        self._topic = topic
        self._monotonic_s = monotonic_s
        self._clients = clients
        self._looks = 0  # still to be done
        self._since_s: dict[Client, float] = {}  # who reaches no broker, while others do

    def suspect(self) -> None:
        """A client has said that all brokers are down: when they are back, each is asked."""
        self._looks = CALM_LOOKS

    def look(self) -> None:
        """Ask every client whether it reaches brokers, if there is a reason to."""
        if not self._looks:
            return
        clients, now_s = self._clients(), self._monotonic_s()
        if not AdminClient(self._settings).reaches(self._topic, FRESH_ANSWER_S):
            self._since_s.clear()  # brokers are away: no client is to blame
            return
        for client in clients:
            match client.reaches(self._topic, ANSWER_S):
                case True:
                    self._since_s.pop(client, None)
                case False if now_s - self._since_s.setdefault(client, now_s) >= LOST_S:
                    del self._since_s[client]
                    self._replace(client)
        self._since_s = {client: since_s for client, since_s in self._since_s.items() if client in clients}
        self._looks = CALM_LOOKS if self._since_s else self._looks - 1

    def _replace(self, client: Client) -> None:
        kind = type(client).__name__
        log.error("a Kafka client reaches no broker any more, while others do", extra={"client": kind})
        if isinstance(client, AdminClient):
            client.renew()
        else:
            client.lose()
