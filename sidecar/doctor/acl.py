"""Every right that the sidecar's principal in Kafka and its user in Redis need: `tickover acl print`.

    names as Kafka's access control has patterns for them -> rights in Kafka, rights in Redis -> commands that give them

Kafka's rights imply others: who may read or write a topic may describe it, and who may write to any topic may use an
idempotent producer. What is implied is not listed. No right on the cluster is needed (Kafka 2.8 and newer). Each
reader beside the engine names a group that it never joins: the client looks for the group's coordinator all the same,
and gives an error to a reader who may not describe it.

In Redis: keys, one channel, and the commands that are called, those in scripts too. CONFIG is not among them: where
Redis doesn't tell its `save` setting, tickover says so only if there is no append-only file either.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from policies.glob import is_exact
from policies.model import Policy
from policies.table import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from policies.topic.kafka_tools import KafkaTools
from sidecar.doctor.redis_tools import RedisTools
from sidecar.settings.redis import CLUSTER, SENTINEL, read_redis_url
from sidecar.settings.settings import Settings

EVERY: Final = "*"  # a literal of this name stands for all
_WILD: Final = re.compile(r"[*?\[]")

Resource = Literal["topic", "group", "transactional-id"]
Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]

OPERATIONS: Final[tuple[Operation, ...]] = ("Read", "Write", "Create", "Describe", "DescribeConfigs")
READER_GROUPS: Final = ("tickover-policies", "tickover-doctor")

_HOLDING: Final = (
    "del", "eval", "evalsha", "exists", "get", "hdel", "hexists", "hget", "hscan", "hset", "info", "set", "unlink",
    "zadd", "zcount", "zmscore", "zrange", "zrangebyscore", "zrank", "zrem", "zremrangebyscore", "zscore",
)  # fmt: skip
_IDEMPOTENCY: Final = ("expire", "hmget", "hsetnx", "time")
_LOOKING_UP: Final = ("blpop", "publish", "rpush", "subscribe")
_CONDITIONS: Final = ("expire", "hgetall", "zremrangebyrank")  # and what holding takes
_ONE_SERVER: Final = ("script|load",)  # in a Cluster scripts are sent whole, where a node doesn't know them
_OF_PRIMARY: Final = ("role",)
_CLUSTER: Final = ("asking", "cluster|slots", "command")


class Pattern(NamedTuple):
    """A literal name (`*`: every name), or with `prefixed` the beginning of names."""

    kind: Literal["literal", "prefixed"]
    name: str

    @property
    def is_one(self) -> bool:
        """Whether it stands for one name only."""
        return self.kind == "literal" and self.name != EVERY

    @property
    def stem(self) -> str:
        """Beginning that all its names share; empty where every name is meant."""
        return "" if self.name == EVERY else self.name

    def covers(self, other: "Pattern") -> bool:
        """Whether whatever `other` means is meant by this one too."""
        if self.kind == "prefixed":
            return other.name.startswith(self.name)
        return self.name == EVERY or self == other

    def narrowed(self, glob: str) -> "Pattern | None":
        """Pattern of those names that the glob may match; None: no name. Wider where Kafka has no such pattern."""
        if self.is_one:
            return self if fnmatchcase(self.name, glob) else None
        stem = beginning(glob)
        if is_exact(glob):
            return literal(glob) if glob.startswith(self.stem) else None
        if self.stem.startswith(stem) or stem.startswith(self.stem):
            return beginning_with(max(self.stem, stem, key=len))
        return None


def literal(name: str) -> Pattern:
    """One name."""
    return Pattern("literal", name)


def beginning_with(stem: str) -> Pattern:
    """All names that begin so; every name for an empty one."""
    return Pattern("prefixed", stem) if stem else literal(EVERY)


def beginning(glob: str) -> str:
    """Beginning of a glob, up to its first wildcard."""
    found = _WILD.search(glob)
    return glob if found is None or is_exact(glob) else glob[: found.start()]


def of_glob(glob: str, topics: Iterable[str]) -> list[Pattern] | None:
    """The patterns for a glob; where Kafka has none for it, the names of `topics` that match, None without any."""
    if is_exact(glob):
        return [literal(glob)]
    stem = beginning(glob)
    if glob == stem + "*":
        return [beginning_with(stem)]
    return [literal(topic) for topic in topics if fnmatchcase(topic, glob)] or None


def without_covered(patterns: Iterable[Pattern]) -> Iterator[Pattern]:
    """Each pattern that no other one covers, once."""
    distinct = list(dict.fromkeys(patterns))
    for pattern in distinct:
        if not any(other != pattern and other.covers(pattern) for other in distinct):
            yield pattern


class Right(NamedTuple):
    """Operations allowed on the resources that the pattern names, and the role that these have for tickover."""

    resource: Resource
    pattern: Pattern
    operations: tuple[Operation, ...]
    role: str


class Rights(NamedTuple):
    """All rights, and the globs for which Kafka has no pattern and no topic was known: (setting, glob)."""

    rights: list[Right]
    unresolved: list[tuple[str, str]]


class _Claim(NamedTuple):
    """One operation on what one pattern names, and why."""

    pattern: Pattern
    operation: Operation
    role: str


def kafka_rights(
    settings: Settings, policies: Sequence[Policy], topics: Iterable[str] = (), creates: bool = True
) -> Rights:
    """`topics` are those of the cluster, for globs such as `*-retry`, which Kafka's access control can't say. Without
    `creates` tickover's own topics exist already.
    """
    found = _Topics(settings, policies, sorted(topics))
    claims = [*_own_topics(settings, creates), *found.claims()]
    return Rights(
        [*_rights("topic", claims), *_groups(settings), *_transactional_ids(settings)],
        found.unresolved,
    )


def _own_topics(settings: Settings, creates: bool) -> Iterator[_Claim]:
    made: tuple[Operation, ...] = ("Create", "DescribeConfigs") if creates else ("DescribeConfigs",)
    for role, name in (
        ("ledger", settings.ledger_topic),
        ("policies", settings.policies.topic),
        ("quarantine", settings.quarantine.topic),
        ("audit", settings.audit_topic),
        ("redrives", settings.redrive_topic),
        ("redriven letters", settings.redriven_topic),
        ("changes", settings.changes_topic),
        ("schedules", settings.schedule_topic),
        ("pauses", settings.pause_topic),
    ):
        for operation in ("Read", "Write", *made):
            yield _Claim(literal(name), operation, role)


class _Topics:
    """The topics of the users: sources, targets, dead letters."""

    def __init__(self, settings: Settings, policies: Sequence[Policy], topics: Sequence[str]) -> None:
        self._settings = settings
        self._policies = policies
        self._topics = topics
        self.unresolved: list[tuple[str, str]] = []

    def claims(self) -> Iterator[_Claim]:
        """All operations, many of them more than once."""
        settings, policies = self._settings, self._policies
        globs = settings.sources or tuple(glob for policy in policies for glob in policy.match.topics)
        own = {literal(topic) for topic in settings.own_topics}
        where = "sources" if settings.sources else "match.topics"
        sources = [source for source in self._patterns(where, globs) if source not in own]
        for source in sources:
            # Written: messages and control records of REST, occurrences of schedules, redriven quarantine.
            yield from _claims(source, ("Read", "Write", "DescribeConfigs"), "source")
        for policy in policies:
            targets, dead = self._targets(policy, sources)
            for target in targets:
                yield from _claims(target, ("Write", "DescribeConfigs"), "target")
            for topic in dead:
                yield from _claims(topic, ("Read", "Write"), "dead letters")
        for glob in settings.dead_letters.topics:
            for topic in of_glob(glob, self._topics) or ():  # more than what policies name is a courtesy
                yield from _claims(topic, ("Read",), "dead letters")

    def _targets(self, policy: Policy, sources: Sequence[Pattern]) -> tuple[list[Pattern], list[Pattern]]:
        """Where the policy sends records, and its dead ones."""
        mine = [part for glob in policy.match.topics for source in sources if (part := source.narrowed(glob))]
        targets = self._patterns(f"target.allow of {policy.name}", policy.target.allow)
        if policy.target.topic is not None:
            targets.append(literal(policy.target.topic))
        elif policy.retry is not None:
            targets += [default for source in mine if (default := _shortened(source, RETRY_SUFFIX))]
        if policy.dead_letter is not None:
            return targets, [literal(policy.dead_letter.topic)]
        roots = targets if policy.retry else mine
        return targets, [dead for topic in roots for dead in self._dead_letters(policy, topic, sources)]

    def _dead_letters(self, policy: Policy, topic: Pattern, sources: Sequence[Pattern]) -> list[Pattern]:
        """Dead letters of what the pattern names: those of a prefix by their names, lest targets may be read too."""
        if topic.is_one:
            return [literal(topic.name + DEAD_LETTER_SUFFIX)]
        if any(source.covers(topic) for source in sources):
            return [topic]  # all of it is read and written as a source
        return self._patterns(f"dead letters of {policy.name}", [f"{topic.stem}*{DEAD_LETTER_SUFFIX}"])

    def _patterns(self, where: str, globs: Iterable[str]) -> list[Pattern]:
        patterns: list[Pattern] = []
        for glob in globs:
            found = of_glob(glob, self._topics)
            if found is None:
                self.unresolved.append((where, glob))
            patterns += found or ()
        return patterns


def _shortened(source: Pattern, suffix: str) -> Pattern | None:
    if not source.is_one:
        return source
    return literal(source.name.removesuffix(suffix)) if source.name.endswith(suffix) else None


def _claims(pattern: Pattern, operations: Iterable[Operation], role: str) -> Iterator[_Claim]:
    for operation in operations:
        yield _Claim(pattern, operation, role)


def _groups(settings: Settings) -> Iterator[Right]:
    yield Right("group", literal(settings.group), ("Read",), "consumer group")
    group, readers = settings.group, [
        f"{settings.ledger_topic}.recovery", f"{settings.ledger_topic}.receipts", f"{settings.changes_topic}.receipts",
        settings.changes_topic, settings.redrive_topic, settings.redriven_topic,
        settings.schedule_topic, settings.pause_topic,
    ]  # fmt: skip
    readers += [f"{group}.rebuild", f"{group}.letters", f"{group}.redrive", *READER_GROUPS]
    for name in sorted(set(readers) - {group}):
        yield Right("group", literal(name), ("Describe",), "reader without a group")


def _transactional_ids(settings: Settings) -> Iterator[Right]:
    root = f"tickover.{settings.group}"
    if settings.guarantee == "exactly_once":
        yield Right("transactional-id", beginning_with(f"{root}:"), ("Write",), "engine")
    yield Right("transactional-id", beginning_with(f"{root}.redrive."), ("Write",), "redrives")
    yield Right("transactional-id", beginning_with(f"{root}.change."), ("Write",), "changes")
    yield Right("transactional-id", beginning_with(f"{root}.schedules."), ("Write",), "schedules")


def _rights(resource: Resource, claims: Iterable[_Claim]) -> Iterator[Right]:
    """One right for each pattern, with all operations that no other pattern gives already."""
    listed = list(claims)
    needed: dict[Pattern, set[Operation]] = {claim.pattern: set() for claim in listed}
    for operation in OPERATIONS:
        for pattern in without_covered(claim.pattern for claim in listed if claim.operation == operation):
            needed[pattern].add(operation)
    for pattern, operations in needed.items():
        if operations:
            roles = dict.fromkeys(claim.role for claim in listed if claim.pattern == pattern)
            ordered = tuple(operation for operation in OPERATIONS if operation in operations)
            yield Right(resource, pattern, ordered, ", ".join(roles))


class RedisRights(NamedTuple):
    """Patterns of keys and channels, commands in lower case (`script|load` is SCRIPT LOAD)."""

    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def rules(self) -> list[str]:
        """As ACL SETUSER takes them, behind a user's name and password."""
        return [
            "resetkeys", "resetchannels", "-@all", *(f"~{key}" for key in self.keys),
            *(f"&{channel}" for channel in self.channels), *(f"+{command}" for command in self.commands),
        ]  # fmt: skip


def redis_rights(settings: Settings) -> RedisRights:
    """Exactly what is used of one server, or of a Cluster or what Sentinels name where the settings say so."""
    group = settings.group
    there = None if settings.redis.embedded else read_redis_url(settings.redis.url)
    kind = "" if there is None else there.kind
    commands = {*_HOLDING, *_IDEMPOTENCY, *_LOOKING_UP, *_CONDITIONS, *(_CLUSTER if kind == CLUSTER else _ONE_SERVER)}
    if kind == SENTINEL:
        commands |= set(_OF_PRIMARY)
    if there is not None and there.database:
        commands.add("select")
    own = tuple(f"tickover:{group}:{what}:*" for what in ("answer", "conditions", "idempotency"))
    keys = (f"{{{group}:*", *own)
    return RedisRights(keys, (f"tickover:{group}:questions",), tuple(sorted(commands)))


def kafka_commands(rights: Iterable[Right], principal: str, tools: KafkaTools) -> Iterator[str]:
    """Lines for a shell: one for all rights that differ in the name only."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for right in rights:
        alike.setdefault((right.resource, right.pattern.kind, right.operations), []).append(right.pattern.name)
    for (resource, kind, operations), names in alike.items():
        words = ["--add", "--allow-principal", principal]
        for operation in operations:
            words += ["--operation", operation]
        for name in names:
            words += [f"--{resource}", name]
        yield tools.command("kafka-acls.sh", shlex.join([*words, "--resource-pattern-type", kind]))


def redis_command(rights: RedisRights, user: str, tools: RedisTools) -> str:
    """A line for a shell that makes such a user; it stops where the variable REDIS_PASSWORD isn't set.

    The shell's own printf hands the password over: as an argument of redis-cli everybody on the machine could see it.
    """
    variable = '"${REDIS_PASSWORD:?the password of this user}"'
    rules = shlex.join(["ACL", "SETUSER", user, "reset", "on", *rights.rules])
    made = tools.reading(f"printf '>%s' {variable}", rules)
    return f": {variable} && {made}"


def redis_rules_command(rights: RedisRights, user: str, tools: RedisTools) -> str:
    """A line for a shell that gives a user these rights and leaves its password as it is."""
    return tools.command(shlex.join(["ACL", "SETUSER", user, *rights.rules]))
