"""Rights as the commands that give them."""

import shlex
from collections.abc import Iterable, Iterator

from sidecar.doctor.kafka_rights import Right
from sidecar.doctor.redis_rights import RedisRights


def kafka_commands(rights: Iterable[Right], principal: str, bootstrap: str) -> Iterator[str]:
    """Lines for a shell: one for all rights that differ in the name only."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for right in rights:
        alike.setdefault((right.resource, right.pattern.kind, right.operations), []).append(right.pattern.name)
    for (resource, kind, operations), names in alike.items():
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for operation in operations:
            words += ["--operation", operation]
        for name in names:
            words += [f"--{resource}", name]
        yield shlex.join([*words, "--resource-pattern-type", kind])


def redis_command(rights: RedisRights, user: str) -> str:
    """A line for a shell that makes such a user; it stops where the variable REDIS_PASSWORD isn't set.

    The shell's own printf hands the password over: as an argument of redis-cli everybody on the machine could see it.
    """
    variable = '"${REDIS_PASSWORD:?the password of this user}"'
    rules = shlex.join(["ACL", "SETUSER", user, "reset", "on", *rights.rules])
    return f": {variable} && printf '>%s' {variable} | redis-cli -x {rules}"


def redis_rules_command(rights: RedisRights, user: str) -> str:
    """A line for a shell that gives a user these rights and leaves its password as it is."""
    return shlex.join(["redis-cli", "ACL", "SETUSER", user, *rights.rules])
