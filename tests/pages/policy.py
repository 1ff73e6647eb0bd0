"""The page of policies' fields, from their JSON Schema."""

from typing import Final

from policies.model import policy_schema
from tests.pages.schema import properties, sections
from tests.pages.text import head

WORDS: Final = """\
Every field of a policy, from the JSON Schema that `GET /v1/schemas/policy` returns. A duration is `250ms`, `90s`,
`15m`, `2h`, `3d` or `PT90S`; a bare number is milliseconds. Which policy decides about a record, and what it does then:
[the contract](../contract.md#policy).

A policy has exactly one of `retry` and `delay`. A delay policy needs `target.topic` or `target.allow`. Unknown fields
are refused.

"""


def page() -> str:
    """The whole text."""
    schema = policy_schema()
    return head("Policy", "policies/model.py", WORDS) + properties(schema) + "".join(sections(schema["$defs"]))
