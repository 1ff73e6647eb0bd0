"""Who answers which request. A handler is given the broker and the request, and gives a mapping of kio's field names,
or None if there is nothing to say (acks=0).

    async def heartbeat(broker: Broker, request: Request) -> Response:
        return {"error_code": ...}

To wait for a delayed operation: `await broker.answer_of(...)`. Fields that a request's version doesn't have are not in
its type: `getattr(request.body, "name", default)`. `CloseConnection` ends the connection instead of answering.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from broker.api_keys import ApiKey
from broker.broker import Broker
from broker.handle_fetch import fetch
from broker.handle_metadata import metadata
from broker.handle_offsets import list_offsets
from broker.handle_produce import produce
from broker.handle_topics import create_topics
from broker.request import Request

Response = Mapping[str, Any] | None
Handler = Callable[[Broker, Request], Awaitable[Response]]

HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
}
