"""A group's coordinator: found by asking any broker, forgotten when it doesn't answer or is none any more."""

import asyncio
from typing import Any, Final

from broker.clients.consumer.consumer_records import ConsumerSettings, RetriableError
from broker.clients.network_client import BOOTSTRAP, COORDINATOR, NetworkClient
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors

GROUP: Final = 0  # the type of the key; 1 is a transactional id

MOVED: Final = frozenset({Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR})
LOADING: Final = Errors.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorLink:
    """Requests of one group."""

    def __init__(self, group_id: str, settings: ConsumerSettings, network: NetworkClient) -> None:
        self.group_id = group_id
        self._network = network
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._finding = asyncio.Lock()
        self._is_known = False

    async def ask(self, api_key: ApiKey, answer_in_s: float | None = None, **body: Any) -> Any:
        """The answer to a request about the group, waiting as for others or `answer_in_s`. OSError: not now."""
        await self._find()
        more_s = 0.0 if answer_in_s is None else answer_in_s - self._request_timeout_s
        try:
            return await self._network.ask(COORDINATOR, api_key, more_s, group_id=self.group_id, **body)
        except OSError:
            self.forget()
            raise

    def forget(self) -> None:
        """Look for it before the next request."""
        self._is_known = False

    async def disconnect(self) -> None:
        """End the connection to the coordinator: requests that wait for an answer get none."""
        self.forget()
        await self._network.set_coordinator()

    async def _find(self) -> None:
        async with self._finding:
            if self._is_known:
                return
            told = await self._network.ask(BOOTSTRAP, ApiKey.FIND_COORDINATOR, key=self.group_id, key_type=GROUP)
            error = Errors(told.error_code)
            if error in MOVED or error is LOADING:
                raise RetriableError(f"no coordinator of {self.group_id} yet")
            if error is not Errors.NONE:
                raise ApiError(error, f"the coordinator of {self.group_id}")
            await self._network.set_coordinator((told.host, told.port))
            self._is_known = True
