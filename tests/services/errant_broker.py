"""A reference broker that answers with an error when a test says so.

`python -m tests.services.errant_broker` with the options of `tickover broker` is the broker, in a process of its own:
clients in the test's process may hold the interpreter's lock while they wait for it. Files beside its data say what
comes next.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from broker.cluster.broker import Broker
from broker.protocol.api_keys import ApiKey
from broker.protocol.request import Request
from broker.requests import group_offsets, offsets, produce, topics
from broker.requests.handlers import HANDLERS
from purgatory.errors import ApiError, Errors
from sidecar.__main__ import main
from tests.services.kafka_servers import ReferenceServer

CALLS: Final = (ApiKey.END_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP)  # answer: error_code
SILENCE: Final = Errors.NETWORK_EXCEPTION  # no broker answers with it: wanted, there is no answer at all
TAKEN_BYTES_MAX: Final = 8 << 20  # of topics that are tickover's own, by a cluster that somebody manages
_CHECK: Final = produce._check
_FETCH: Final = group_offsets._fetch
_FIND: Final = offsets._find
_NEW_TOPIC: Final = topics._new_topic


class Errand:
    """The next error, in two files: what is wanted, and the number of the last that was given."""

    def __init__(self, directory: Path) -> None:
        self._wanted = directory / "wanted.json"
        self._given = directory / "given.json"
        self._without_transactions = directory / "without-transactions"
        self._managed = directory / "managed"
        self._alone = directory / "alone"
        self._told_alone = directory / "told-alone"

    def want(self, number: int, where: str, error: Errors) -> None:
        """Answer with this error once: to a produce request for the topic `where`, or to an API of this name."""
        _write(self._wanted, json.dumps({"number": number, "where": where, "error": error.value}))

    @property
    def without_transactions(self) -> bool:
        """Whether transactional ids are refused, as by brokers that have no transactions."""
        return self._without_transactions.exists()

    def take_transactions_away(self) -> None:
        """From now on."""
        self._without_transactions.touch()

    def give_transactions_back(self) -> None:
        """Twice is harmless."""
        self._without_transactions.unlink(missing_ok=True)

    @property
    def managed(self) -> bool:
        """Whether the settings of new topics are limited."""
        return self._managed.exists()

    def manage(self) -> None:
        """From now on."""
        self._managed.touch()

    @property
    def alone(self) -> bool:
        """Whether the broker knows of no broker yet, not even of itself, as one whose cluster has just started."""
        return self._alone.exists()

    def forget_brokers(self) -> None:
        """From now on."""
        self._alone.touch()

    @property
    def told_alone(self) -> int:
        """How often it has said so."""
        return self._told_alone.stat().st_size if self._told_alone.exists() else 0

    def tell_alone(self) -> None:
        """Note that it said so."""
        with self._told_alone.open("ab") as told:
            told.write(b".")

    def learn_brokers(self) -> None:
        """Twice is harmless."""
        self._alone.unlink(missing_ok=True)

    @property
    def given(self) -> int:
        """The number of the last error that was given, 0 before the first."""
        return int(self._given.read_text()) if self._given.exists() else 0

    def take(self, where: str) -> Errors:
        """Error to answer here, once; NONE where the answer is to be true."""
        if not self._wanted.exists():
            return Errors.NONE
        wanted = json.loads(self._wanted.read_text())
        if wanted["where"] != where or wanted["number"] <= self.given:
            return Errors.NONE
        _write(self._given, str(wanted["number"]))
        return Errors(wanted["error"])


def _write(path: Path, text: str) -> None:
    """At once: the other process reads it at any time."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


class ErrantServer(ReferenceServer):
    """The broker of this module, for tests."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (sys.executable, "-m", "tests.services.errant_broker"))
        self.errand = Errand(directory)


def _check(errand: Errand) -> Any:
    def check(broker: Broker, request: Request, name: str, records: Any) -> None:
        error = errand.take(name)
        if error is not Errors.NONE:
            raise ApiError(error)
        _CHECK(broker, request, name, records)

    return check


def _fetch(errand: Errand) -> Any:
    def fetch(*asked: Any, **more: Any) -> tuple[Errors, list[Mapping[str, Any]]]:
        error = errand.take(ApiKey.OFFSET_FETCH.name)
        return _FETCH(*asked, **more) if error is Errors.NONE else (error, [])

    return fetch


def _find(errand: Errand) -> Any:
    def find(*asked: Any) -> Any:
        error = errand.take(ApiKey.LIST_OFFSETS.name)
        if error is not Errors.NONE:
            raise ApiError(error)
        return _FIND(*asked)

    return find


def _handler(errand: Errand, key: ApiKey) -> Any:
    do = HANDLERS[key]

    async def handle(broker: Broker, request: Request) -> Mapping[str, Any] | None:
        error = errand.take(key.name)
        if error is SILENCE:
            await asyncio.Event().wait()
        return await do(broker, request) if error is Errors.NONE else {"error_code": error}

    return handle


def _init_producer_id(errand: Errand) -> Any:
    do = HANDLERS[ApiKey.INIT_PRODUCER_ID]

    async def handle(broker: Broker, request: Request) -> Mapping[str, Any] | None:
        if request.body.transactional_id is not None and errand.without_transactions:
            return {"error_code": Errors.UNSUPPORTED_VERSION, "producer_id": -1, "producer_epoch": -1}
        return await do(broker, request)

    return handle


def _metadata(errand: Errand) -> Any:
    do = HANDLERS[ApiKey.METADATA]

    async def handle(broker: Broker, request: Request) -> Mapping[str, Any] | None:
        answer = await do(broker, request)
        if answer is None or not errand.alone:
            return answer
        errand.tell_alone()
        return {**answer, "brokers": []}

    return handle


def _new_topic(errand: Errand) -> Any:
    def new_topic(broker: Broker, wanted: Any) -> Any:
        if errand.managed and wanted.name.startswith("tickover."):
            config = {one.name: one.value for one in wanted.configs}
            if int(config.get("max.message.bytes", "0")) > TAKEN_BYTES_MAX:
                raise ApiError(Errors.POLICY_VIOLATION, f"max.message.bytes must be at most {TAKEN_BYTES_MAX}")
            if wanted.replication_factor != -1:
                raise ApiError(Errors.POLICY_VIOLATION, "Topic replication factor must be the cluster's")
        return _NEW_TOPIC(broker, wanted)

    return new_topic


def serve(options: Sequence[str]) -> None:
    """Until it is asked to end."""
    errand = Errand(Path(options[options.index("--data") + 1]).parent)
    with ExitStack() as stack:
        stack.enter_context(patch.object(produce, "_check", _check(errand)))
        stack.enter_context(patch.dict(HANDLERS, {key: _handler(errand, key) for key in CALLS}))
        stack.enter_context(patch.object(group_offsets, "_fetch", _fetch(errand)))
        stack.enter_context(patch.object(offsets, "_find", _find(errand)))
        stack.enter_context(patch.object(topics, "_new_topic", _new_topic(errand)))
        stack.enter_context(patch.dict(HANDLERS, {ApiKey.INIT_PRODUCER_ID: _init_producer_id(errand)}))
        stack.enter_context(patch.dict(HANDLERS, {ApiKey.METADATA: _metadata(errand)}))
        stack.enter_context(patch.object(sys, "argv", ["tickover", "broker", *options]))
        main()


if __name__ == "__main__":
    serve(sys.argv[1:])
