"""Topics that are consumed: those of the settings or those that the policies match, as far as they exist.

Topics come and go and policies change, so housekeeping looks again every few seconds; the engine subscribes.
"""

import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from operator import methodcaller
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from policies.duration import format_duration
from policies.kafka_clients import AdminClient
from policies.model import Policy
from policies.retention import (
    Ledger,
    Short,
    ledger_retention_ms,
    policies_of,
    short_retentions,
    wanted_retentions_ms,
)
from policies.table import PolicyTable
from sidecar.kafka.errors import CREATING_PASSES
from sidecar.kafka.topics import has_controller, refusals, source_names, source_topics, topic_sizes
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.stats import Left
from sidecar.service.assembly import Machinery
from sidecar.service.leftovers import Leftovers, in_words
from sidecar.service.orphaned_partitions import Unowned
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
COMPACTION_LOOKS: Final = 5  # of two seconds each, until all are asked again whether they are compacted
LEFT_LOOKS: Final = 5  # the same, until it is asked again what is left of former sources ...
FORMER_LOOKS: Final = 300  # ... and which those are, though neither sources nor policies have changed
GONE_LOOKS: Final = 30  # the same, until nothing more is published of a deleted topic: its last counts are scraped

# What is said of a topic that is compacted, and what to do.
REFUSED: Final = "not consumed: a compacted topic can't be a source; use cleanup.policy=delete"
TURNED: Final = (
    "this source has become compacted: what isn't read yet, is in memory when a process ends, or is lost by Redis may "
    "be lost; use cleanup.policy=delete. Until then what was begun of it goes on, and no other partition begins"
)
COMPACTED_LEDGER: Final = (
    "the ledger is compacted: what a recovery needs disappears, then records fire again or are lost; use "
    "cleanup.policy=delete"
)


class Sources:
    """The subscription of one process. Used by one thread at a time: at start, then by housekeeping. REST asks
    `is_source` and `would_leave` from threads of its own.
    """

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        machinery: Machinery,
        table: Callable[[], PolicyTable],
        leftovers: Leftovers,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._machinery = machinery
        self._table = table
        self._leftovers = leftovers
        # What `sources` leaves out has a policy all the same: another replica may consume it.
        self._all_sources = settings.model_copy(update={"sources": ()})
        self.reserved = settings.reserved_topics
        self._wanted: frozenset[str] = frozenset()  # the sources, as last seen
        self._known: tuple[PolicyTable, frozenset[str], frozenset[str]] | None = None  # what `topics` was asked last
        self.left: dict[str, Left] = {}  # topics that are consumed only until they are empty
        # With a policy, not consumed here, and the group has something of them: another replica's, by its own setting.
        self._elsewhere: frozenset[str] = frozenset()
        self._asked_of: PolicyTable | None = None  # with these policies it was last asked what is left
        self._subscribed: list[str] | None = None  # None: not looked yet
        self._unseen: set[str] = set()  # consumed until the brokers showed them no more: deleted, or not for us to see
        self._compacted: dict[str, bool] = {}  # as the brokers last said; False where we may not see it
        self._refused: frozenset[str] = frozenset()  # as the engine was told
        self._looks = 0
        self._missed: dict[str, int] = {}  # topics that are published and don't exist: in how many looks
        self._warnings: list[str] = []  # of compacted topics
        self._unread: set[str] = set()  # topics whose settings can't be read: said once
        self._ledger_kept_ms = 0  # as long as was asked for since it was last checked
        self._ledger_warnings: list[str] = []
        self.partitions: dict[str, int] = {}  # of each topic that is consumed here, as last seen
        self.group_partitions: dict[str, int] = {}  # and of those that aren't, of which the group has something
        self.unowned = Unowned(admin, settings.group, machinery, lambda: self.partitions)

    def look(self) -> None:
        """Subscribe to what is there now, if it differs from before."""
        policies, published = policies_of(self._table()), self._published()
        names = self._names(policies)
        if names is not None:
            names.update(published, self.left, {self._settings.ledger_topic})
        try:
            existing = topic_sizes(self._admin, names, ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            self._machinery.publisher.kafka_problem = f"no answer from Kafka: {words_of(error)}"
            raise
        self._machinery.publisher.kafka_problem = ""
        self._forget_deleted(published, existing)
        self._ask_about_unseen(existing)
        self._keep_ledger(policies)
        # Brokers may list a topic before they know its partitions, or lose sight of them for a moment.
        sizes = {name: size or self.partitions.get(name, 0) for name, size in existing.items()}
        known = [name for name, size in sizes.items() if size]
        wanted = self._consumable(source_topics(self._settings, policies, known))
        self._keep_left(wanted, known)
        self._machinery.publisher.warnings = (*self._warnings, *self._ledger_warnings, *in_words(self.left))
        sizes |= topic_sizes(self._admin, self.left.keys() - sizes.keys(), ANSWER_S)  # nobody had named these
        found = sorted({*wanted, *(topic for topic in self.left if sizes.get(topic))})
        self._count({topic: sizes[topic] for topic in found})
        self.group_partitions = {
            **self.partitions,
            **{name: sizes[name] for name in self._elsewhere.intersection(known)},
        }
        if found == self._subscribed:
            return
        log.info("sources", extra={"topics": found})
        intake = self._machinery.intake
        self._machinery.engine.submit(lambda _: intake.subscribe(found)).result(ANSWER_S)
        self._subscribed = found

    def _names(self, *tables: Sequence[Policy]) -> set[str] | None:
        """The only topics that the settings or these policies could make sources; None: others may become some."""
        globs = {glob for policies in tables for policy in policies for glob in policy.match.topics}
        return source_names({*globs, *self._settings.sources})

    def _published(self) -> set[str]:
        """Topics that the engine has counts of."""
        stats = self._machinery.engine.stats
        return {*stats.topics, *stats.targets, *stats.rebuilt, *(topic for topic, _ in stats.lost)}

    def _forget_deleted(self, published: Collection[str], existing: Container[str]) -> None:
        """Sources and targets come and go: without this each would have its counts until the process ends."""
        self._missed = {topic: self._missed.get(topic, 0) + 1 for topic in published if topic not in existing}
        gone = frozenset(topic for topic, looks in self._missed.items() if looks >= GONE_LOOKS)
        if gone:
            self._machinery.engine.submit(lambda engine: engine.forget_topics(gone)).result(ANSWER_S)

    def _ask_about_unseen(self, existing: Container[str]) -> None:
        """Tell the engine of a source that is there and not shown to us any more. Its partitions are let go of as if it
        had been deleted, and then no client is refused it: what is held of it would wait for ever, untold.
        """
        self._unseen = {topic for topic in self._unseen.union(self._subscribed or ()) if topic not in existing}
        for topic, words in refusals(self._admin, self._unseen, ANSWER_S).items():
            if words:
                self._machinery.engine.submit(methodcaller("doubt_source", topic, words)).result(ANSWER_S)
            else:
                self._unseen.discard(topic)

    @property
    def topics(self) -> frozenset[str]:
        """See `api.ports.Sources`. What is only read until it is empty is none of them."""
        table, consumed = self._table(), frozenset(self.partitions).difference(self.left)
        if self._known is None or self._known[0] is not table or self._known[1] != consumed:
            self._known = table, consumed, frozenset(source_topics(self._settings, policies_of(table), consumed))
        return self._known[2]

    @property
    def open_partitions(self) -> dict[str, int]:
        """Partition counts of `topics`: of those that may be written to."""
        topics = self.topics
        return {topic: count for topic, count in self.partitions.items() if topic in topics}

    def is_source(self, topic: str) -> bool:
        """See `api.ports.Sources`."""
        policies = policies_of(self._table())
        if topic in self.left or topic not in source_topics(self._settings, policies, self._existing({topic})):
            return False
        if (compacted := self._compacted.get(topic)) is None:
            compacted = self._is_compacted(topic)
        return not compacted

    def _is_compacted(self, topic: str) -> bool:
        """As the brokers say now."""
        answer = self._configs([topic]).get(topic)
        if answer is None:
            raise LookUpUnavailable(f"no answer about the settings of {topic}")
        return "compact" in answer.get("cleanup.policy", "")

    def would_leave(self, policies: Sequence[Policy]) -> dict[str, Left]:
        """See `api.ports.Sources`."""
        present = policies_of(self._table())
        existing = self._existing(self._names(present, policies))
        now = set(source_topics(self._all_sources, present, existing))
        gone = now.difference(source_topics(self._all_sources, policies, existing))
        try:
            return self._leftovers.of(gone)
        except (KafkaException, TimeoutError) as error:
            raise LookUpUnavailable(str(error)) from error

    def _existing(self, names: Collection[str] | None) -> list[str]:
        try:
            return list(topic_sizes(self._admin, names, ANSWER_S))
        except (KafkaException, TimeoutError) as error:
            raise LookUpUnavailable(words_of(error)) from error

    def _keep_left(self, wanted: Sequence[str], existing: Sequence[str]) -> None:
        """Keep consuming topics that aren't wanted any more, until the group has nothing of them."""
        topics, table = frozenset(wanted), self._table()
        is_new = topics != self._wanted or table is not self._asked_of
        if not is_new and self._looks % LEFT_LOOKS != 1:
            return
        with_policy = source_topics(self._all_sources, policies_of(table), existing)
        # One that is reserved by its name may have been a source before that was so: it is read to its end, too.
        known, anew = {*topics, *with_policy, *self._settings.own_topics}, is_new or self._looks % FORMER_LOOKS == 1
        found = self._leftovers.beside(known, anew)
        if found.keys() != self.left.keys():
            retired = frozenset(found)
            self._machinery.engine.submit(lambda engine: engine.retire(retired)).result(ANSWER_S)
            for words in in_words({topic: one for topic, one in found.items() if topic not in self.left}):
                log.warning("records without a policy", extra={"about": words})
        self._wanted, self.left, self._asked_of = topics, found, table
        elsewhere = frozenset(with_policy) - topics
        self._elsewhere = frozenset(self._leftovers.of(elsewhere))

    def _count(self, partitions: dict[str, int]) -> None:
        """The gate must know of how many partitions this process has a share."""
        if partitions != self.partitions:
            gate = self._machinery.gate
            self._machinery.engine.submit(lambda _: setattr(gate, "sources", partitions)).result(ANSWER_S)
        self.partitions = partitions

    def _consumable(self, topics: list[str]) -> list[str]:
        """A compacted source is refused, until it isn't any more: compaction could remove a record that is held, and
        nobody would know. One of which nobody has said whether it is waits.

        One that becomes so while it is consumed is read on: what is read is in memory or Redis before it is compacted,
        what isn't read is left to compaction. But none of its partitions begins any more: what was held in memory
        would be read again, and what is missing taken for settled.
        """
        ledger, begun, before = self._settings.ledger_topic, self._subscribed or [], self._compacted
        watched = [*topics, ledger]
        anew = self._looks % COMPACTION_LOOKS == 0
        self._looks += 1
        answers = self._configs([topic for topic in watched if anew or before.get(topic, True)])
        told = {topic: "compact" in config.get("cleanup.policy", "") for topic, config in answers.items()}
        self._compacted = {topic: before[topic] for topic in watched if topic in before} | told
        words = {topic: TURNED if topic in begun else REFUSED for topic in topics} | {ledger: COMPACTED_LEDGER}
        self._tell(before, words)
        refused = frozenset(topic for topic in topics if self._compacted.get(topic))
        if refused != self._refused:
            self._machinery.engine.submit(lambda engine: engine.refuse(refused)).result(ANSWER_S)
            self._refused = refused
        if waiting := [topic for topic in topics if topic not in self._compacted and topic not in begun]:
            self._machinery.publisher.kafka_problem = f"no answer from Kafka about the settings of {waiting[0]}"
        return [topic for topic in topics if topic in begun or self._compacted.get(topic) is False]

    def _tell(self, before: Mapping[str, bool], words: Mapping[str, str]) -> None:
        """Log what has changed; `/readyz` shows what is."""
        wrong = [topic for topic, compacted in self._compacted.items() if compacted]
        for topic in wrong:
            if not before.get(topic):
                log.error(words[topic], extra={"topic": topic})
        for topic, compacted in self._compacted.items():
            if before.get(topic) and not compacted:
                log.info("a topic is not compacted any more", extra={"topic": topic})
        self._warnings = [f"{topic}: {words[topic]}" for topic in wrong]

    def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The brokers' settings of each topic; empty where we may not see them. A topic of which nobody has said
        anything is left out: it is to be asked about again.
        """
        if not topics:
            return {}
        if not has_controller(self._admin, topics[0], ANSWER_S):
            return {topic: {} for topic in topics}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        found: dict[str, dict[str, str]] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=ANSWER_S).items():
            topic = resource.name
            try:
                found[topic] = {name: entry.value for name, entry in future.result(ANSWER_S + 1).items()}
            except (KafkaException, TimeoutError) as error:
                if code_of(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found[topic] = {}
                if topic not in self._unread:
                    log.warning("a topic's settings can't be read", extra={"topic": topic, "error": str(error)})
                self._unread.add(topic)
            else:
                self._unread.discard(topic)
        return found

    def _keep_ledger(self, policies: Sequence[Policy]) -> None:
        """Let the ledger keep its blocks for as long as the policies ask for: there were others when it was made.

        Never for less than it does, and not where a setting says how long. Where it is refused, `check_retention`
        goes on saying what is missing; where nobody answers, the next look asks again.
        """
        ledger, wanted_ms = self._settings.ledger_topic, ledger_retention_ms(policies)
        if self._settings.ledger.retention_ms or wanted_ms <= self._ledger_kept_ms:
            return
        config = self._configs([ledger]).get(ledger)
        if config is None:
            return
        if 0 <= int(config.get("retention.ms", -1)) < wanted_ms and not self._raise_retention(ledger, wanted_ms):
            return
        self._ledger_kept_ms = wanted_ms

    def _raise_retention(self, ledger: str, wanted_ms: int) -> bool:
        """Ask the brokers for it; False: they didn't answer, so it is to be asked for again."""
        entry = ConfigEntry("retention.ms", str(wanted_ms), incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, ledger, incremental_configs=[entry])
        about = {"topic": ledger, "retention_ms": wanted_ms}
        try:
            self._admin.incremental_alter_configs([change], request_timeout=ANSWER_S)[change].result(ANSWER_S + 1)
        except (KafkaException, TimeoutError) as error:
            words = "the ledger's retention can't be raised to the longest hold and 7 days"
            log.warning(words, extra={**about, "error": str(error)})
            return code_of(error) not in CREATING_PASSES
        log.info("the ledger's retention was raised", extra=about)
        return True

    def check_retention(self) -> list[Short]:
        """Say which sources, and whether the ledger, keep records for less than they may be held, or are held now.

        A ledger whose retention somebody has put back since is raised again; where it can't be, `/readyz` warns, too.
        """
        sources = sorted({*(self._subscribed or ()), *self._refused})
        if not sources:
            return []
        ledger, policies = self._settings.ledger_topic, policies_of(self._table())
        self._ledger_kept_ms = 0
        self._keep_ledger(policies)
        kept = Ledger(ledger, self._settings.ledger.retention_ms)
        wanted_ms = wanted_retentions_ms(policies, sources, kept, self._machinery.publisher.held_for_ms)
        short = list(short_retentions(self._configs(list(wanted_ms)), wanted_ms))
        for topic, setting, value, for_ms in short:
            log.warning(
                "a topic may lose records while they are held: what Redis loses then can't be put back; raise "
                "retention.ms above the longest hold, set retention.bytes to -1, cleanup.policy to delete",
                extra={"topic": topic, "setting": setting, "configured": value, "wanted_ms": for_ms},
            )
        self._ledger_warnings = [
            f"{topic}: {setting} is {value}, and its records are to be kept for {format_duration(for_ms)}"
            for topic, setting, value, for_ms in short
            if topic == ledger
        ]
        return short


def words_of(error: KafkaException | TimeoutError) -> str:
    """An error of Kafka's client, in words."""
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.args[0].str())


def code_of(error: KafkaException | TimeoutError) -> int:
    """Kafka's number of what went wrong."""
    return KafkaError._TIMED_OUT if isinstance(error, TimeoutError) else int(error.args[0].code())
