"""Checks of the topics: pure functions of what the cluster, the policies and the settings say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from policies.backoff import spread_of
from policies.duration import DAY_MS, format_duration
from policies.glob import compile_globs, is_exact
from policies.model import Policy
from policies.retention import (
    Ledger,
    Short,
    ledger_retention_ms,
    longest_hold_ms,
    short_retentions,
    wanted_retentions_ms,
)
from policies.topic.topic import TOPIC_SETTINGS
from sidecar.doctor.facts import Cluster, Finding, Severity, TopicFacts
from sidecar.kafka.topics import (
    CHANGES_PARTITIONS,
    JOBS_CONFIG,
    PAUSES_CONFIG,
    QUARANTINE_CONFIG,
    REDRIVEN_CONFIG,
    SCHEDULE_CONFIG,
    audit_config,
    ledger_config,
    source_topics,
)
from sidecar.model.ports import MESSAGE_BYTES_MAX
from sidecar.settings.settings import Settings

REPLICAS_WANTED: Final = 3
PARTITIONS_WANTED: Final = 6  # of a topic that is like no other: 2, 3 or 6 replicas share them evenly
# The defaults of brokers (1,048,588) and of the producer (1,000,000) differ by this; that is no finding.
SIZE_SLACK: Final = 1.05


def check_topics(cluster: Cluster, settings: Settings, policies: Sequence[Policy]) -> Iterator[Finding]:
    """All checks of topics, the internal ones first."""
    sources = source_topics(settings, policies, cluster.topics)
    short = _short(cluster, settings, policies, sources)
    yield from _ledger(cluster, settings, policies, short[settings.ledger_topic])
    yield from _policy_topic(cluster, settings)
    replicas = settings.ledger.replication_factor
    yield from _kept(cluster, "quarantine", settings.quarantine.topic, QUARANTINE_CONFIG, replicas)
    yield from _kept(cluster, "audit", settings.audit_topic, audit_config(settings.audit.retention_ms), replicas)
    yield from _kept(cluster, "redrives", settings.redrive_topic, JOBS_CONFIG, replicas)
    yield from _kept(cluster, "redriven letters", settings.redriven_topic, REDRIVEN_CONFIG, replicas)
    yield from _kept(cluster, "changes", settings.changes_topic, JOBS_CONFIG, replicas, CHANGES_PARTITIONS)
    yield from _kept(cluster, "schedules", settings.schedule_topic, SCHEDULE_CONFIG, replicas)
    yield from _kept(cluster, "pauses", settings.pause_topic, PAUSES_CONFIG, replicas)
    yield from _sources(cluster, settings, policies, short)
    yield from _targets(cluster, policies)
    yield from _sizes(cluster, policies, sources)
    for name, facts in cluster.topics.items():
        if facts.config_problem:
            fix = cluster.allow(name, "DescribeConfigs")
            yield Finding(
                Severity.WARNING, f"topic {name}", f"its settings cannot be read: {facts.config_problem}", fix
            )


def matching(globs: Iterable[str], topics: Iterable[str]) -> list[str]:
    """The topics that one of the globs matches, sorted."""
    matcher = compile_globs(globs)
    return sorted(filter(matcher.matches, topics)) if matcher else []


def _ledger(
    cluster: Cluster, settings: Settings, policies: Sequence[Policy], short: Sequence[Short]
) -> Iterator[Finding]:
    name = settings.ledger_topic
    part = f"ledger {name}"
    wanted_ms = settings.ledger.retention_ms or ledger_retention_ms(policies)
    facts = cluster.topics.get(name)
    if facts is None:
        ledger = settings.ledger
        fix = cluster.create(name, ledger.partitions, ledger.replication_factor, ledger_config(wanted_ms))
        yield from _absent(cluster, name, part, fix)
        return
    problems = list(_internal(cluster, name, part, facts))
    reason = " (the longest hold of a policy + 7d)" if settings.ledger.retention_ms is None else " (ledger.retention)"
    for one in short:
        if one.setting == "retention.ms":
            what = f"retention.ms is {_kept_for(one)}, wanted is {format_duration(one.wanted_ms)}{reason}"
            problems.append(Finding(Severity.WARNING, part, what, cluster.alter(name, f"retention.ms={one.wanted_ms}")))
        elif one.setting == "retention.bytes":
            what = f"retention.bytes is {one.value}: entries of held records could go, and then Redis is not expendable"
            problems.append(Finding(Severity.WARNING, part, what, cluster.alter(name, "retention.bytes=-1")))
    batch_bytes = int(settings.kafka.client_properties().get("batch.size", 0))
    batch_bytes_max = min(batch_bytes, cluster.producer_bytes_max)  # several blocks may share a batch
    problems += _too_small(cluster, name, part, max(batch_bytes_max, MESSAGE_BYTES_MAX))
    if facts.config.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        what = "message.timestamp.type is not LogAppendTime, so this clock cannot be compared with the broker's"
        fix = cluster.alter(name, "message.timestamp.type=LogAppendTime")
        problems.append(Finding(Severity.WARNING, part, what, fix))
    yield from problems or [Finding(Severity.OK, part, f"{facts.partitions} partitions, settings as wanted")]


def _too_small(cluster: Cluster, name: str, part: str, bytes_wanted: int = MESSAGE_BYTES_MAX) -> Iterator[Finding]:
    """Findings where a topic of tickover's own takes less than `bytes_wanted`. As a rule Kafka's default is enough."""
    bytes_max = cluster.topics[name].number("max.message.bytes")
    if bytes_max is not None and bytes_max < bytes_wanted:
        what = f"max.message.bytes is {bytes_max}, wanted is {bytes_wanted}: a large record would be refused"
        fix = cluster.alter(name, f"max.message.bytes={bytes_wanted}")
        yield Finding(Severity.WARNING, part, what, fix)


def _policy_topic(cluster: Cluster, settings: Settings) -> Iterator[Finding]:
    name = settings.policies.topic
    part = f"policy topic {name}"
    facts = cluster.topics.get(name)
    if facts is None:
        fix = cluster.create(name, 1, settings.ledger.replication_factor, TOPIC_SETTINGS)
        yield from _absent(cluster, name, part, fix)
        return
    problems = list(_internal(cluster, name, part, facts))
    if facts.partitions != 1:
        what = f"{facts.partitions} partitions, of which only the first is used"
        fix = "write to it through tickover only, or name a new one with policies.topic"
        problems.append(Finding(Severity.WARNING, part, what, fix))
    problems += _too_small(cluster, name, part)
    for setting in ("retention.ms", "retention.bytes"):
        if (facts.number(setting) or -1) != -1:
            what = f"{setting} is {facts.number(setting)}: in the end the policies would be lost"
            problems.append(Finding(Severity.ERROR, part, what, cluster.alter(name, f"{setting}=-1")))
    yield from problems or [Finding(Severity.OK, part, "one partition, kept for ever")]


def _kept(
    cluster: Cluster, role: str, name: str, config: Mapping[str, str], replicas: int, partitions: int = 1
) -> Iterator[Finding]:
    part = f"{role} {name}"
    facts = cluster.topics.get(name)
    if facts is None:
        yield from _absent(cluster, name, part, cluster.create(name, partitions, replicas, config))
        return
    meant = "compact" in config["cleanup.policy"]
    if meant and not facts.compacted:
        what = "is not compacted, so what is to be remembered disappears"
        yield Finding(Severity.ERROR, part, what, cluster.alter(name, "cleanup.policy=compact"))
        return
    faults = [] if meant else [*_internal(cluster, name, part, facts), *_kept_too_shortly(cluster, name, part, config)]
    faults += _too_small(cluster, name, part)
    if facts.partitions < partitions:
        fix = cluster.widen(name, partitions)
        faults.append(Finding(Severity.ERROR, part, f"has {facts.partitions} partition, wanted are {partitions}", fix))
    stamps = config.get("message.timestamp.type")
    if stamps is not None and facts.config.get("message.timestamp.type", stamps) != stamps:
        what = f"message.timestamp.type is not {stamps}, so what it has begins by the clock of whoever wrote it"
        faults.append(Finding(Severity.WARNING, part, what, cluster.alter(name, f"message.timestamp.type={stamps}")))
    yield from faults or [Finding(Severity.OK, part, "exists")]


def _kept_too_shortly(cluster: Cluster, name: str, part: str, config: Mapping[str, str]) -> Iterator[Finding]:
    wanted_ms, retention_ms = int(config["retention.ms"]), cluster.topics[name].number("retention.ms")
    if retention_ms is None or retention_ms < 0 or 0 <= wanted_ms <= retention_ms:
        return
    wanted = "for ever" if wanted_ms < 0 else f"for {format_duration(wanted_ms)}"
    what = f"retention.ms is {format_duration(retention_ms)}: its records are meant to be kept {wanted}"
    yield Finding(Severity.WARNING, part, what, cluster.alter(name, f"retention.ms={wanted_ms}"))


def _absent(cluster: Cluster, name: str, part: str, fix: str) -> Iterator[Finding]:
    if name not in cluster.hidden:
        yield Finding(Severity.WARNING, part, "does not exist; the sidecar creates it at start if it may, else", fix)


def _internal(cluster: Cluster, name: str, part: str, facts: TopicFacts) -> Iterator[Finding]:
    if facts.compacted:
        what = "is compacted, so records in it disappear"
        yield Finding(Severity.ERROR, part, what, cluster.alter(name, "cleanup.policy=delete"))
    if facts.replicas == 1 and cluster.brokers >= REPLICAS_WANTED:
        what = f"has one replica on a cluster of {cluster.brokers} brokers: it is lost with its broker"
        fix = "raise its replication factor with kafka-reassign-partitions.sh"
        yield Finding(Severity.WARNING, part, what, fix)


def _sources(
    cluster: Cluster, settings: Settings, policies: Sequence[Policy], short: Mapping[str, Sequence[Short]]
) -> Iterator[Finding]:
    sources = source_topics(settings, policies, cluster.topics)
    wanted = settings.sources or dict.fromkeys(glob for policy in policies for glob in policy.match.topics)
    for glob in wanted:
        if is_exact(glob):
            if glob not in cluster.topics and glob not in cluster.hidden:
                here = [policy for policy in policies if matching(policy.match.topics, [glob])]
                fix = cluster.create(glob, _partitions_like(cluster, here))
                yield Finding(Severity.ERROR, f"source {glob}", "does not exist", fix)
        elif not matching([glob], sources):
            yield Finding(Severity.WARNING, f"source {glob}", "no topic matches it", "create one, or correct the glob")
    for name in sources:
        problems = list(_source(cluster, name, policies, short[name]))
        yield from problems or [_sound_source(cluster, name, policies)]


def _sound_source(cluster: Cluster, name: str, policies: Sequence[Policy]) -> Finding:
    """Nothing is wrong with it; of a retry topic whose timestamps are producers' it is said what would be better."""
    facts, part = cluster.topics[name], f"source {name}"
    retries = any(policy.retry is not None and matching(policy.match.topics, [name]) for policy in policies)
    if not retries or facts.config.get("message.timestamp.type") != "CreateTime":
        return Finding(Severity.OK, part, f"{facts.partitions} partitions")
    what = (
        f"{facts.partitions} partitions; recommended is LogAppendTime: with CreateTime a back-off counts from what the"
        " producer says, and a connector may keep a timestamp of days ago"
    )
    return Finding(Severity.OK, part, what, cluster.alter(name, "message.timestamp.type=LogAppendTime"))


def _source(cluster: Cluster, name: str, policies: Sequence[Policy], short: Sequence[Short]) -> Iterator[Finding]:
    facts, part = cluster.topics[name], f"source {name}"
    if facts.compacted:
        what = "is compacted: a record that is held could disappear, so the sidecar refuses it"
        yield Finding(Severity.ERROR, part, what, cluster.alter(name, "cleanup.policy=delete"))
    here = [policy for policy in policies if matching(policy.match.topics, [name])]
    if not here:
        fix = "apply a policy whose match.topics names it (tickover policies apply -f FILE)"
        yield Finding(Severity.ERROR, part, "no policy matches it: its records are quarantined", fix)
        return
    longest = max(here, key=longest_hold_ms)
    for one in short:
        if one.setting == "retention.ms":
            what = (
                f"retention.ms is {_kept_for(one)}, below {_limit_of(longest)} {format_duration(one.wanted_ms)}"
                f" of policy {longest.name}: records held longer live in Redis only, which is then not expendable"
            )
            fix = cluster.alter(name, f"retention.ms={one.wanted_ms + DAY_MS}")
            yield Finding(Severity.WARNING, part, what, fix)
        elif one.setting == "retention.bytes":
            what = f"retention.bytes is {one.value}: a burst could push held records out"
            yield Finding(Severity.WARNING, part, what, cluster.alter(name, "retention.bytes=-1"))


def _kept_for(short: Short) -> str:
    """How long the topic keeps its records now."""
    return format_duration(int(short.value))


def _short(
    cluster: Cluster, settings: Settings, policies: Sequence[Policy], sources: Sequence[str]
) -> dict[str, list[Short]]:
    """Settings of ledger and sources that may take what is held, by topic, as a running process judges them."""
    wanted_ms = wanted_retentions_ms(policies, sources, Ledger(settings.ledger_topic, settings.ledger.retention_ms))
    configs = {name: cluster.topics[name].config for name in wanted_ms if name in cluster.topics}
    found: dict[str, list[Short]] = {name: [] for name in wanted_ms}
    for one in short_retentions(configs, wanted_ms):
        found[one.topic].append(one)
    return found


def _limit_of(policy: Policy) -> str:
    """Name of the field that says how long the policy may hold a record."""
    retry = policy.retry
    if retry is None:
        return "delay.max"
    if retry.timeout is not None:
        return "retry.timeout"
    return "retry.backoff and spread" if spread_of(retry).max_ms else "retry.backoff"


def _targets(cluster: Cluster, policies: Sequence[Policy]) -> Iterator[Finding]:
    found = 0
    for policy in policies:
        wanted = {
            "target.topic": [policy.target.topic] if policy.target.topic else [],
            "target.allow": list(policy.target.allow),
            "dead_letter.topic": [policy.dead_letter.topic] if policy.dead_letter else [],
        }
        for place, globs in wanted.items():
            for glob in globs:
                part = f"policy {policy.name}, {place}"
                if matching([glob], cluster.topics):
                    found += 1
                elif glob in cluster.hidden:
                    continue  # said as a missing right
                elif is_exact(glob):
                    fix = cluster.create(glob, _partitions_like(cluster, [policy]))
                    yield Finding(Severity.ERROR, part, f"topic {glob} does not exist", fix)
                else:
                    fix = "create one, or correct the glob"
                    yield Finding(Severity.WARNING, part, f"no topic matches {glob}", fix)
    if found:
        yield Finding(Severity.OK, "targets", f"{found} targets and dead-letter topics of policies exist")


def _partitions_like(cluster: Cluster, policies: Sequence[Policy]) -> int:
    """Partitions for a topic of these policies: as many as their largest source has, or their largest target while
    there is no source; `PARTITIONS_WANTED` while there is neither.
    """
    sources = [glob for policy in policies for glob in policy.match.topics]
    targets = [glob for policy in policies for glob in (policy.target.topic, *policy.target.allow) if glob]
    for globs in (sources, targets):
        if there := matching(globs, cluster.topics):
            return max(cluster.topics[name].partitions for name in there)
    return PARTITIONS_WANTED


def _sizes(cluster: Cluster, policies: Sequence[Policy], sources: Sequence[str]) -> Iterator[Finding]:
    """Findings about sizes: a record that may come in must fit through the producer and into every target."""
    problems = []
    for name in sources:
        largest = cluster.topics[name].number("max.message.bytes")
        if largest is None:
            continue
        part = f"message size {name}"
        if largest > cluster.producer_bytes_max * SIZE_SLACK:
            what = (
                f"takes records of {largest} bytes, the producer sends {cluster.producer_bytes_max}:"
                " larger ones are quarantined by reference"
            )
            fix = f"TICKOVER_KAFKA__CLIENT__MESSAGE_MAX_BYTES={largest}"
            problems.append(Finding(Severity.WARNING, part, what, fix))
        here = [policy for policy in policies if matching(policy.match.topics, [name])]
        globs = [glob for policy in here for glob in (policy.target.topic, *policy.target.allow) if glob]
        for target in matching(globs, cluster.topics):
            taken = cluster.topics[target].number("max.message.bytes")
            if taken is not None and taken * SIZE_SLACK < largest:
                what = f"takes records of {largest} bytes, its target {target} only {taken}"
                fix = cluster.alter(target, f"max.message.bytes={largest}")
                problems.append(Finding(Severity.WARNING, part, what, fix))
    yield from problems
    if sources and not problems:
        yield Finding(Severity.OK, "message size", "what the sources take, producer and targets take too")
