"""Settings of topics and brokers: told, and those of topics changed."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import Topic
from broker.cluster.replication_quota import RATES
from broker.cluster.topic_config import (
    BOOLEAN,
    BROKER_NAMES,
    DEFINITIONS,
    INT,
    LONG,
    STRING,
    check_config,
    policies_of,
    value_of,
)
from broker.log.config import LONG_MAX
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors

TOPIC: Final = 2
BROKER: Final = 4

SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

REFUSED: Final = "Only settings of topics and rates of replication can be changed while a broker runs."

Change = Callable[[Topic, Any], Mapping[str, str | None]]


async def describe_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """All settings of each resource, or those asked for."""
    results = []
    for resource in request.body.resources:
        answer: dict[str, Any] = _named(resource)
        try:
            wanted = resource.configuration_keys
            answer["configs"] = [
                {**one, "synonyms": one["synonyms"] if request.body.include_synonyms else ()}
                for one in _settings(broker, resource)
                if wanted is None or one["name"] in wanted
            ]
        except ApiError as error:
            answer |= {"error_code": error.error, "error_message": str(error)}
        results.append(answer)
    return {"results": results}


async def alter_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Replace all settings: one that isn't given goes back to its default."""
    return _alter(broker, request, lambda topic, resource: {one.name: one.value for one in resource.configs})


async def incremental_alter_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Change the settings that are given: any other stays as it is."""
    return _alter(broker, request, _changed)


def _alter(broker: Broker, request: Request, change: Change) -> Mapping[str, Any]:
    answers = []
    counts = Counter((one.resource_type, one.resource_name) for one in request.body.resources)
    for resource in request.body.resources:
        answer: dict[str, Any] = _named(resource)
        try:
            if counts[(resource.resource_type, resource.resource_name)] > 1:
                raise ApiError(Errors.INVALID_REQUEST, "Each resource must appear at most once.")
            if resource.resource_type == TOPIC:
                name = resource.resource_name
                config = change(broker.controller.topic(name), resource)
                broker.controller.change_config(name, config, validate_only=request.body.validate_only)
            else:
                _change_broker(broker, resource, validate_only=request.body.validate_only)
        except ApiError as error:
            answer |= {"error_code": error.error, "error_message": str(error)}
        answers.append(answer)
    return {"responses": answers}


def _change_broker(broker: Broker, resource: Any, *, validate_only: bool) -> None:
    """A broker's settings are as it was started, but for the rates of replication. To take back what was never changed
    is no change: tools that move partitions do so."""
    changes: dict[str, str | None] = {}
    for one in resource.configs:
        operation = getattr(one, "config_operation", None)
        if resource.resource_type != BROKER or operation not in (SET, DELETE):
            raise ApiError(Errors.INVALID_REQUEST, REFUSED)
        if one.name in RATES:
            changes[one.name] = one.value if operation == SET else None
        elif operation == SET:
            raise ApiError(Errors.INVALID_REQUEST, REFUSED)
    if changes:
        broker.controller.change_broker_config(resource.resource_name, changes, validate_only=validate_only)


def _changed(topic: Topic, resource: Any) -> Mapping[str, str | None]:
    config: dict[str, str | None] = dict(topic.config)
    counts = Counter(one.name for one in resource.configs)
    for one in resource.configs:
        definition = DEFINITIONS.get(one.name)
        if counts[one.name] > 1:
            raise ApiError(Errors.INVALID_REQUEST, f"{one.name} is given more than once.")
        if one.config_operation == DELETE:
            config.pop(one.name, None)
        elif one.value is None:
            raise ApiError(Errors.INVALID_REQUEST, f"Null value not supported for : {one.name}")
        elif one.config_operation == SET:
            config[one.name] = one.value
        elif definition is None or not definition.is_list:
            raise ApiError(Errors.INVALID_CONFIG, f"Can't append to or subtract from {one.name}: it is no list.")
        elif one.config_operation in (APPEND, SUBTRACT):
            words, given = policies_of(value_of(topic.config, one.name)), policies_of(one.value)
            kept = [word for word in words if word not in given]
            config[one.name] = ",".join(kept + given if one.config_operation == APPEND else kept)
        else:
            raise ApiError(Errors.INVALID_REQUEST, f"There is no operation {one.config_operation}.")
    return check_config(config)


def _named(resource: Any) -> dict[str, Any]:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _settings(broker: Broker, resource: Any) -> list[dict[str, Any]]:
    if resource.resource_type == TOPIC:
        return _of_topic(broker, broker.controller.topic(resource.resource_name))
    if resource.resource_type != BROKER:
        raise ApiError(Errors.INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}.")
    if resource.resource_name not in ("", str(broker.broker_id)):
        raise ApiError(Errors.INVALID_REQUEST, f"Unexpected broker id, expected {broker.broker_id} or empty string.")
    return _of_broker(broker)


def _of_topic(broker: Broker, topic: Topic) -> list[dict[str, Any]]:
    described = []
    defaults = broker.settings.topic_defaults
    for name, definition in DEFINITIONS.items():
        broker_name = BROKER_NAMES.get(name, name)
        synonyms = [{"name": broker_name, "value": definition.default, "source": SOURCE_DEFAULT}]
        if name in defaults:
            synonyms.insert(0, {"name": broker_name, "value": defaults[name], "source": SOURCE_STATIC_BROKER})
        if name in topic.config:
            synonyms.insert(0, {"name": name, "value": topic.config[name], "source": SOURCE_TOPIC})
        described.append(
            {
                "name": name,
                "value": synonyms[0]["value"],
                "config_source": synonyms[0]["source"],
                "config_type": definition.type_number,
                "synonyms": synonyms,
            }
        )
    return described


def _of_broker(broker: Broker) -> list[dict[str, Any]]:
    values = {"broker.id": broker.broker_id, **asdict(broker.settings)}
    del values["topic_defaults"]
    rates = [
        {
            "name": name,
            "value": value or str(LONG_MAX),
            "read_only": False,
            "config_source": SOURCE_DEFAULT if value is None else SOURCE_DYNAMIC_BROKER,
            "config_type": LONG,
            "synonyms": (),
        }
        for name in RATES
        for value in (broker.metadata.broker_setting(broker.broker_id, name),)
    ]
    return rates + [
        {
            "name": name.replace("_", "."),
            "value": str(value).lower() if isinstance(value, bool) else str(value),
            "read_only": True,
            "config_source": SOURCE_STATIC_BROKER,
            "config_type": BOOLEAN if isinstance(value, bool) else INT if isinstance(value, int) else STRING,
            "synonyms": (),
        }
        for name, value in values.items()
    ]
