"""Kafka's assignors by the names that members of a group agree on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.clients.assignors import range_assignor, round_robin_assignor, sticky_assignor
from broker.clients.assignors.assignor import Assign

ASSIGNORS: Final[Mapping[str, Assign]] = MappingProxyType(
    {
        range_assignor.NAME: range_assignor.assign,
        round_robin_assignor.NAME: round_robin_assignor.assign,
        sticky_assignor.NAME: sticky_assignor.assign,
        sticky_assignor.COOPERATIVE_NAME: sticky_assignor.assign_cooperatively,
    }
)
