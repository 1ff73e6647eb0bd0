"""Policies over REST: a thin skin on the policy topic's compare-and-set."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from starlette.responses import Response

from api.body import validated
from api.dependencies import Admin, GivenPorts, JsonBody, Reader, json_response
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, PAGE_MAX, Cursor, Limit, page
from api.ports import Ports
from api.problems import Problem, unprocessable
from api.routes.named_resources import (
    IfMatch,
    IfNoneMatch,
    NamedResource,
    refuse_other_name,
    versioned_response,
    with_name,
)
from policies.errors import FileManaged, PolicyConflict, PolicyError, PolicyTooLarge, TooManyPolicies
from policies.model import (
    GLOB_TEXT_MAX,
    Policy,
    Removed,
    Versioned,
    glob_text_length,
    policy_document,
    policy_schema,
)
from policies.topic.log import VERSION_MAX
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.reserved_topics import reserved_in
from sidecar.model.times import with_times

# Of every write; of what makes a version.
WRITES: Final = (
    "precondition-failed", "precondition-required", "invalid-precondition", "file-managed", "holds-messages",
    "policies-unavailable",
)  # fmt: skip
SHOWN: Final = ("ETag", "Tickover-Managed-By")  # headers of an answer that is a policy
CHECKS: Final = ("globs-too-long", "reserved-topic", "policy-too-large", "too-many-policies")
router = APIRouter(tags=["policies"])

Force = Annotated[bool, Query(description="Also where messages of a topic that is no source then are held")]


def _current_version(ports: Ports, name: str) -> int:
    versioned = ports.policies.table.policies.get(name)
    return 0 if versioned is None else versioned.version


def _problem_of(error: PolicyError) -> Problem:
    match error:
        case PolicyConflict():
            return POLICY.changed_meanwhile(error.current_version)
        case FileManaged():
            return _file_managed()
        case PolicyTooLarge():
            return unprocessable("policy-too-large", "The policy does not fit into one Kafka record.")
        case TooManyPolicies():
            return Problem(409, "too-many-policies", "There are as many policies as there can be.")
        case _:
            return _unavailable("The policy topic can't be written at the moment.")


POLICY: Final = NamedResource("policy", "/v1/policies", _current_version, (PolicyError,), _problem_of)


class RollbackRequest(BaseModel):
    """Version to take up again."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"examples": [{"version": 3}]})
    version: Annotated[StrictInt, Field(ge=1, le=VERSION_MAX)]


@router.get("/v1/policies", **described("List policies"))
async def list_policies(
    caller: Reader, ports: GivenPorts, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """All policies by name; each with its version and who manages it."""
    policies = ports.policies.table.policies
    names, following = page(sorted(policies), str, limit, cursor)
    items = [
        {
            **policy_document(policies[name].policy),
            "version": policies[name].version,
            "managed_by": policies[name].managed_by,
        }
        for name in names
    ]
    return json_response({"items": items, "next": following})


@router.get("/v1/policies/{name}", **described("Show a policy", None, "policy-not-found", headers={200: SHOWN}))
async def get_policy(caller: Reader, ports: GivenPorts, name: str) -> Response:
    """One policy; the ETag header is its version."""
    return _shown(_current(ports, name))


@POLICY.put(
    router,
    described(
        "Create or replace a policy",
        Policy,
        *WRITES,
        *CHECKS,
        "name-differs",
        headers={200: SHOWN, 201: (*SHOWN, "Location")},
    ),
)
async def put_policy(
    caller: Admin,
    body: JsonBody,
    ports: GivenPorts,
    name: str,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    force: Force = False,
) -> Response:
    """Create a policy (`If-None-Match: *`) or replace one (`If-Match`).

    Refused where a topic of which anything is held would be a source no more, unless `force` is given.
    """
    policy = validated(Policy, with_name(body, name))
    refuse_other_name(policy.name, name)
    _refuse_reserved(ports, policy)
    refuse_long_globs(policy)
    _refuse_file_managed(ports, name)
    expected = POLICY.expected(ports, name, if_match, if_none_match)
    await _refuse_what_would_be_left(ports, name, policy, force)
    written = await _put(ports, policy, expected, caller.name)
    return _shown(written, created=not expected)


@router.delete(
    "/v1/policies/{name}", status_code=204, **described("Delete a policy", None, *WRITES, "policy-not-found")
)
async def delete_policy(
    caller: Admin, ports: GivenPorts, name: str, if_match: IfMatch = None, force: Force = False
) -> Response:
    """Delete a policy. Records it has decided keep their decision; its versions can still be read.

    Refused where a topic of which anything is held would be a source no more, unless `force` is given: then it is read
    until all of that is settled, and what is new there goes to the quarantine.
    """
    _current(ports, name)
    _refuse_file_managed(ports, name)
    expected = POLICY.expected(ports, name, if_match)
    _refuse_while_unhealthy(ports)
    await _refuse_what_would_be_left(ports, name, None, force)
    await POLICY.written(lambda: ports.policies.delete(name, expected, caller.name, "api"))
    return Response(status_code=204)


@router.get("/v1/policies/{name}/versions", **described("List the versions of a policy", None, "policy-not-found"))
async def list_policy_versions(
    caller: Reader, ports: GivenPorts, name: str, limit: Limit = PAGE_MAX, cursor: Cursor = None
) -> Response:
    """Every version of a policy, oldest first; a version with a null policy is a deletion."""
    versions, following = page(_history(ports, name), _version_key, limit, cursor)
    return json_response({"items": [_version_document(version) for version in versions], "next": following})


@router.post(
    "/v1/policies/{name}/rollback",
    **described(
        "Roll a policy back to an earlier version", RollbackRequest, *WRITES, *CHECKS, "policy-not-found",
        "version-not-found", "version-is-deletion", headers={200: SHOWN},
    ),
)  # fmt: skip
async def rollback_policy(
    caller: Admin, body: JsonBody, ports: GivenPorts, name: str, if_match: IfMatch = None, force: Force = False
) -> Response:
    """Write a new version that is equal to an earlier one. `If-Match` is optional; `force` as for `PUT`."""
    wanted = validated(RollbackRequest, body).version
    history = _history(ports, name)
    _refuse_file_managed(ports, name)
    found = next((version for version in history if version.version == wanted), None)
    if found is None:
        raise Problem(404, "version-not-found", f"The policy has no version {wanted}.")
    if isinstance(found, Removed):
        raise unprocessable("version-is-deletion", f"Version {wanted} is a deletion; use DELETE.")
    _refuse_reserved(ports, found.policy)
    expected = POLICY.version(ports, name) if if_match is None else POLICY.expected(ports, name, if_match)
    await _refuse_what_would_be_left(ports, name, found.policy, force)
    return _shown(await _put(ports, found.policy, expected, caller.name))


@router.get("/v1/schemas/policy", tags=["schemas"], **described("Show the JSON Schema of a policy"))
async def get_policy_schema(caller: Reader) -> Response:
    """The JSON Schema (2020-12) of a policy."""
    return json_response(policy_schema())


def refuse_long_globs(policy: Policy) -> None:
    """Raises `Problem` (422). A version that the topic holds already may have more, and be taken up again."""
    length = glob_text_length(policy)
    if length > GLOB_TEXT_MAX:
        detail = (
            f"The policy's globs have {length} characters together, and may have {GLOB_TEXT_MAX}: split it by topics."
        )
        raise unprocessable("globs-too-long", detail)


async def _put(ports: Ports, policy: Policy, expected: int, author: str) -> Versioned:
    _refuse_while_unhealthy(ports)
    return await POLICY.written(lambda: ports.policies.put(policy, expected, author, "api"))


async def _refuse_what_would_be_left(ports: Ports, name: str, policy: Policy | None, force: bool) -> None:
    """Topics of which something is held, and that no policy would make a source with this one written or deleted."""
    if force:
        return
    policies = {name: versioned.policy for name, versioned in ports.policies.table.policies.items()}
    policies.pop(name, None)
    after = [*policies.values(), *([] if policy is None else [policy])]
    try:
        left = await asyncio.to_thread(ports.sources.would_leave, after)
    except LookUpUnavailable as error:
        raise _unavailable(f"What would be left can't be asked for now ({error}); ?force=true doesn't ask.") from None
    if left:
        topics = {topic: {"held": one.held, "unsettled": one.unsettled} for topic, one in sorted(left.items())}
        words = ", ".join(f"{topic} ({one.records} records)" for topic, one in sorted(left.items()))
        raise Problem(
            409,
            "holds-messages",
            f"No policy would make these topics a source, and messages of them are held: {words}. With ?force=true "
            "they are read until these are settled, and what is new there goes to the quarantine.",
            topics=topics,
        )


def _refuse_reserved(ports: Ports, policy: Policy) -> None:
    """A policy that names such a topic would lead nowhere: it is never a source and never a target."""
    if what := reserved_in(policy, ports.sources.reserved):
        raise unprocessable("reserved-topic", f"A policy can't name such a topic: {what}.")


def _current(ports: Ports, name: str) -> Versioned:
    versioned = ports.policies.table.policies.get(name)
    if versioned is None:
        raise _unknown()
    return versioned


def _unknown() -> Problem:
    return Problem(404, "policy-not-found", "There is no policy of this name.")


def _history(ports: Ports, name: str) -> list[Versioned | Removed]:
    versions = list(ports.policies.versions(name))
    if not versions:
        raise _unknown()
    return versions


def _version_key(version: Versioned | Removed) -> str:
    return f"{version.version:016}"


def _version_document(version: Versioned | Removed) -> dict[str, Any]:
    told = {
        "version": version.version,
        "time": version.time_ms,
        "author": version.author,
        "managed_by": version.managed_by,
        "policy": None if isinstance(version, Removed) else policy_document(version.policy),
    }
    return with_times(told, "time")


def _shown(stored: Versioned, created: bool = False) -> Response:
    location = f"{POLICY.path}/{stored.name}" if created else ""
    return versioned_response(
        policy_document(stored.policy), stored.version, {"Tickover-Managed-By": stored.managed_by}, location
    )


def _refuse_file_managed(ports: Ports, name: str) -> None:
    versioned = ports.policies.table.policies.get(name)
    if versioned is not None and versioned.managed_by == "file":
        raise _file_managed()


def _file_managed() -> Problem:
    return Problem(409, "file-managed", "The policies file manages this policy; change it there.")


def _refuse_while_unhealthy(ports: Ports) -> None:
    if not ports.policies.healthy:
        raise _unavailable("The policy topic can't be read at the moment.")


def _unavailable(detail: str) -> Problem:
    return Problem(503, "policies-unavailable", detail, {"Retry-After": "1"})
