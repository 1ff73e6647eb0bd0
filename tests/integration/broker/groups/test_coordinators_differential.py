"""The reference broker and Kafka give the same answers to the same raw requests about groups and transactions."""

import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any
from uuid import uuid4

import pytest

from broker.protocol.api_keys import ApiKey
from broker.records.records import Producer
from purgatory.errors import Errors
from tests.services.broker_experiments import create
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.waiting import wait_until
from tests.unit.log_world import batch

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(600)]

ANSWER_S = 60.0
DELAY_MS = 2_000  # group.initial.rebalance.delay.ms
SESSION_MS = 120_000  # longer than a test may stand still in between
ATTEMPTS = 3  # where it is sessions that run out: what differs by that doesn't differ each time
RETRIED = (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE)
SUBSCRIPTION = pack(">hih5si", 0, 1, 5, b"topic", -1)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("reference")).start()
    yield broker.bootstrap
    broker.stop()


class Asked:
    """One broker, and what it has answered, by label."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = RawClient(bootstrap)
        self.answers: dict[str, object] = {}
        self.name = f"differential-{uuid4().hex[:8]}"

    def note(self, label: str, *codes: Any) -> None:
        assert label not in self.answers
        found = [Errors(code).name if isinstance(code, int) and not isinstance(code, bool) else code for code in codes]
        self.answers[label] = found

    def group_ready(self, group: str) -> None:
        """Wait until the group's coordinator answers."""

        def look() -> bool:
            found = self.client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
            if found.coordinators[0].error_code != Errors.NONE:
                return False
            fetched = self.client.ask(ApiKey.OFFSET_FETCH, 7, group_id=group, topics=None, require_stable=False)
            return fetched.error_code not in RETRIED

        wait_until(look, ANSWER_S, str)

    def join(self, group: str, member: str = "", version: int = 9, **about: Any) -> Any:
        given = {
            "session_timeout": SESSION_MS,
            "rebalance_timeout": SESSION_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
            **about,
        }
        return self.client.ask(ApiKey.JOIN_GROUP, version, group_id=group, member_id=member, **given)

    def sync(self, group: str, member: str, generation: int, *parts: str, **about: Any) -> Any:
        assignments = [{"member_id": one, "assignment": one.encode()} for one in parts]
        about = {"protocol_type": "consumer", "protocol_name": "range", **about}
        given = {"group_id": group, "generation_id": generation, "member_id": member, "assignments": assignments}
        return self.client.ask(ApiKey.SYNC_GROUP, 5, **given, **about)

    def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> int:
        about = {"generation_id": generation, "member_id": member, "group_instance_id": instance}
        return int(self.client.ask(ApiKey.HEARTBEAT, 4, group_id=group, **about).error_code)

    def commit(self, group: str, member: str = "", generation: int = -1, topic: str = "topic", **about: Any) -> int:
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": about.pop("metadata", "")}
        body = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member, **about}
        answer = self.client.ask(ApiKey.OFFSET_COMMIT, 8, **body, topics=[{"name": topic, "partitions": [partition]}])
        return int(answer.topics[0].partitions[0].error_code)

    def fetch(self, group: str, topic: str = "topic", *, stable: bool = False) -> tuple[int, int]:
        topics = [{"name": topic, "partition_indexes": [0]}]
        answer = self.client.ask(ApiKey.OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=stable)
        [partition] = answer.topics[0].partitions
        return int(partition.error_code or answer.error_code), int(partition.committed_offset)

    def init(self, name: str | None, timeout: int = 60_000, had: tuple[int, int] = (-1, -1), version: int = 4) -> Any:
        about = {"transaction_timeout": timeout, "producer_id": had[0], "producer_epoch": had[1]}
        return self.client.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=name, **about)

    def begin(self, name: str) -> tuple[int, int]:
        """An id and epoch, as soon as there is one."""
        begun: list[Any] = []

        def look() -> bool:
            begun[:] = [self.init(name)]
            return bool(begun[0].error_code == Errors.NONE)

        wait_until(look, ANSWER_S, str)
        return begun[0].producer_id, begun[0].producer_epoch

    def add(self, name: str, producer: tuple[int, int], *topics: str, version: int = 3) -> list[int]:
        rows = [{"name": topic, "partitions": [0]} for topic in topics]
        fields = ("transactional_id", "producer_id", "producer_epoch", "topics")
        body = {f"v3_and_below_{key}": value for key, value in zip(fields, (name, *producer, rows), strict=True)}
        answer = self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, **body)
        by_name = sorted(answer.results_by_topic_v3_and_below, key=lambda one: str(one.name))
        return [int(one.results_by_partition[0].partition_error_code) for one in by_name]

    def end(self, name: str, producer: tuple[int, int], *, committed: bool, version: int = 3) -> int:
        """CONCURRENT_TRANSACTIONS is how long markers take, and not the question."""
        who = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
        codes: list[int] = []

        def look() -> bool:
            codes[:] = [int(self.client.ask(ApiKey.END_TXN, version, **who, committed=committed).error_code)]
            return codes[0] != Errors.CONCURRENT_TRANSACTIONS

        wait_until(look, ANSWER_S, str)
        return codes[0]

    def offsets(self, name: str, producer: tuple[int, int], group: str, *member: Any) -> int:
        partition = {"partition_index": 0, "committed_offset": 9, "committed_metadata": ""}
        who = dict(zip(("generation_id", "member_id"), member, strict=False))
        about = {"producer_id": producer[0], "producer_epoch": producer[1], "generation_id": -1, "member_id": "", **who}
        topics = [{"name": "topic", "partitions": [partition]}]
        answer = self.client.ask(
            ApiKey.TXN_OFFSET_COMMIT, 3, transactional_id=name, group_id=group, **about, topics=topics
        )
        return int(answer.topics[0].partitions[0].error_code)


def ask_about_groups(asked: Asked) -> None:
    group = asked.name
    asked.group_ready(group)
    required = asked.join(group)
    asked.note("join without id", required.error_code, required.generation_id, required.protocol_name)
    asked.note("join with an id that nobody gave", asked.join(group, "stranger").error_code)
    joined = asked.join(group, required.member_id)
    about = (joined.generation_id, joined.protocol_type, joined.protocol_name, joined.leader == joined.member_id)
    asked.note("join with it", joined.error_code, str(about), len(joined.members), joined.skip_assignment)
    member = joined.member_id
    asked.note("commit before the sync", asked.commit(group, member, 1))
    asked.note("heartbeat before the sync", asked.heartbeat(group, member, 1))
    again = asked.join(group, member)
    asked.note("join again before the sync", again.error_code, str(again.generation_id), len(again.members))
    asked.note("sync of another generation", asked.sync(group, member, 7).error_code)
    asked.note("sync of another protocol", asked.sync(group, member, 1, protocol_name="sticky").error_code)
    for missing in ("protocol_type", "protocol_name"):
        asked.note(f"sync without {missing}", asked.sync(group, member, 1, **{missing: None}).error_code)
    synced = asked.sync(group, member, 1, member)
    asked.note("sync", synced.error_code, synced.protocol_name, synced.assignment == member.encode())
    asked.note("sync again", asked.sync(group, member, 1).error_code)
    for label, generation, one in (("", 1, member), (" of another", 1, "x"), (" of a former", 0, member)):
        asked.note(f"heartbeat{label}", asked.heartbeat(group, one, generation))
        asked.note(f"commit{label}", asked.commit(group, one, generation))
    asked.note("commit without member", asked.commit(group))
    asked.note("commit to no topic", asked.commit(group, member, 1, topic="nowhere"))
    asked.note("long metadata", asked.commit(group, member, 1, metadata="x" * 4097))
    asked.note("commit of no group's member", asked.commit(f"{group}-none", "x", 1))
    asked.note("commit of no group's generation", asked.commit(f"{group}-none", "", 1))
    asked.note("simple commit", asked.commit(f"{group}-simple"), asked.fetch(f"{group}-simple")[0])
    asked.note("fetch", *map(str, asked.fetch(group)))
    asked.note("fetch of no group", *map(str, asked.fetch(f"{group}-none")))
    for label, timeout in (("short", 1), ("long", 2_000_000)):
        asked.note(f"{label} session", asked.join(f"{group}-session", session_timeout=timeout).error_code)
    asked.note("no name", asked.join("").error_code)
    asked.note("other protocols", asked.join(group, protocols=[{"name": "x", "metadata": b""}]).error_code)
    asked.note("other type", asked.join(group, protocol_type="connect").error_code)
    asked.note("no protocols", asked.join(f"{group}-new", protocols=[]).error_code)
    ask_administrators_questions(asked, group, member)


def ask_administrators_questions(asked: Asked, group: str, member: str) -> None:
    client = asked.client
    for version in (5, 6):
        found = client.ask(ApiKey.DESCRIBE_GROUPS, version, groups=[group, f"{group}-none"]).groups
        for label, one in zip(("", " of none"), found, strict=True):
            about = [one.error_code, one.group_state, one.protocol_type, one.protocol_data, str(len(one.members))]
            asked.note(f"describe {version}{label}", *about)
    results = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group, f"{group}-none"]).results
    asked.note("delete", *(one.error_code for one in sorted(results, key=lambda one: len(one.group_id))))
    topics = [{"name": "topic", "partitions": [{"partition_index": 0}]}]
    deleted = client.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=topics)
    asked.note("delete a subscribed offset", deleted.error_code, deleted.topics[0].partitions[0].error_code)
    deleted = client.ask(ApiKey.OFFSET_DELETE, 0, group_id=f"{group}-none", topics=topics)
    asked.note("delete an offset of none", deleted.error_code)
    static = [asked.join(f"{group}-static", group_instance_id="i") for _ in range(2)]
    asked.note("static", *(one.error_code for one in static), str(static[1].generation_id))
    former, latter = (one.member_id for one in static)
    name = f"{group}-static"
    for label, one in (("former", former), ("latter", latter)):
        asked.note(f"{label} static: heartbeat", asked.heartbeat(name, one, static[1].generation_id, "i"))
    asked.note("static sync", asked.sync(name, former, static[1].generation_id, group_instance_id="i").error_code)
    left = client.ask(ApiKey.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": "x"}, {"member_id": member}])
    asked.note("leave", left.error_code, *(one.error_code for one in left.members))
    left = client.ask(ApiKey.LEAVE_GROUP, 2, group_id=f"{group}-none", member_id="x")
    asked.note("leave no group", left.error_code)
    asked.note("find a coordinator of nothing", *_find(client, 9))


def _find(client: RawClient, kind: int) -> list[int]:
    found = client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=["x"]).coordinators
    return [int(one.error_code) for one in found]


def ask_about_transactions(asked: Asked) -> None:
    name, client = asked.name, asked.client
    wait_until(lambda: _find(client, 1) == [Errors.NONE], ANSWER_S, str)
    producer = asked.begin(name)
    asked.note("no name", asked.init("").error_code)
    for timeout in (0, 1_000_000):
        asked.note(f"timeout {timeout}", asked.init(f"{name}-timeout", timeout).error_code)
    asked.note("end nothing", asked.end(name, producer, committed=True))
    asked.note("add to nobody's", *asked.add(f"{name}-none", producer, "topic"))
    asked.note("add to another's", *asked.add(name, (producer[0] + 77, 0), "topic"))
    asked.note("add no topic", *asked.add(name, producer, "topic", "nowhere"))
    stray = batch(b"stray", producer=Producer(*producer, 0), is_transactional=True)
    for version in (9, 11):
        answer = client.produce("topic", stray, transactional_id=name, version=version)
        asked.note(f"produce {version} outside of it", answer.error_code)
    asked.note("add", *asked.add(name, producer, "topic"))
    asked.note("add again", *asked.add(name, producer, "topic"))
    answer = client.produce("topic", stray, transactional_id=name, version=9)
    asked.note("produce", answer.error_code)
    for version in (1, 3):
        older = (producer[0], producer[1] - 1)
        asked.note(f"end {version} as its former", asked.end(name, older, committed=True, version=version))
        asked.note(f"add {version} as its former", *asked.add(name, older, "topic", version=version))
    for committed in (True, True, False):
        asked.note(f"end {len(asked.answers)}", asked.end(name, producer, committed=committed))
    described = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"{name}-none"]).transaction_states
    asked.note("describe nobody's", described[0].error_code)
    asked.add(name, producer, "topic")
    asked.note("begin while it is open", asked.init(name).error_code)
    latter = asked.begin(name)
    asked.note("epochs", str(latter[1] - producer[1]))
    asked.note("go on as what is fenced", asked.init(name, had=producer).error_code)
    asked.note("go on as a stranger", asked.init(name, had=(latter[0] + 77, 0)).error_code)
    asked.note("go on", asked.init(name, had=latter).error_code)
    asked.note("go on, not having heard", asked.init(name, had=latter).error_code)
    asked.note("id without epoch", asked.init(name, had=(latter[0], -1)).error_code)
    ask_about_offsets(asked)


def ask_about_offsets(asked: Asked) -> None:
    name, group = f"{asked.name}-offsets", f"{asked.name}-group"
    asked.group_ready(group)
    asked.commit(group)
    producer = asked.begin(name)
    asked.note("offsets outside of it", asked.offsets(name, producer, group))
    who = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
    asked.note("add offsets", asked.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **who, group_id=group).error_code)
    asked.note("offsets of a generation", asked.offsets(name, producer, group, 3, "x"))
    asked.note("offsets of a member", asked.offsets(name, producer, group, -1, "x"))
    asked.note("offsets of no group's member", asked.offsets(name, producer, f"{group}-none", 3, "x"))
    asked.note("offsets", asked.offsets(name, producer, group))
    asked.note("pending", *map(str, asked.fetch(group, stable=True)), *map(str, asked.fetch(group)))
    asked.note("end", asked.end(name, producer, committed=True))
    wait_until(lambda: asked.fetch(group, stable=True)[0] == Errors.NONE, ANSWER_S, str)
    asked.note("committed", *map(str, asked.fetch(group, stable=True)))


def ask_about_who_is_silent(asked: Asked) -> None:
    """A member that sends no heartbeat, and a leader that never assigns. What is told, not when."""
    group = asked.name
    asked.group_ready(group)

    def members() -> int:
        [found] = asked.client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group]).groups
        return len(found.members)

    short: Any = {"session_timeout": 1_000, "rebalance_timeout": 2_000}
    silent = asked.join(group, asked.join(group, **short).member_id, **short).member_id
    asked.sync(group, silent, 1, silent)
    wait_until(lambda: members() == 0, ANSWER_S, str)
    asked.note("silent", asked.heartbeat(group, silent, 1), asked.join(group, silent, **short).error_code)
    long: Any = {"session_timeout": 30_000, "rebalance_timeout": 2_000}
    leader = asked.join(group, asked.join(group, **long).member_id, **long)
    asked.note("generation of the next", str(leader.generation_id))
    asked.sync(group, leader.member_id, leader.generation_id, leader.member_id)
    other = Asked(asked.bootstrap)
    required = other.join(group, **long).member_id
    fields = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": SUBSCRIPTION}], **long}
    other.client.send(ApiKey.JOIN_GROUP, 9, group_id=group, member_id=required, **fields)
    told = [Errors.NONE]

    def is_told() -> bool:
        told[0] = Errors(asked.heartbeat(group, leader.member_id, leader.generation_id))
        return told[0] is not Errors.NONE

    wait_until(is_told, ANSWER_S, str)
    asked.note("heartbeat in a rebalance", told[0])
    again = asked.join(group, leader.member_id, **long)
    joined = other.client.receive(ApiKey.JOIN_GROUP, 9)
    asked.note("both", again.error_code, joined.error_code, len(again.members), len(joined.members))
    asked.note("who leads", again.leader == leader.member_id == joined.leader)
    waiting = other.sync(group, required, joined.generation_id)
    asked.note("sync without assignment", waiting.error_code)
    asked.note("who did not assign", asked.heartbeat(group, leader.member_id, again.generation_id))
    alone = other.join(group, required, **long)
    asked.note("who is left", alone.error_code, str(alone.generation_id), alone.leader == required, len(alone.members))
    other.client.close()


def ask_about_the_initial_delay(asked: Asked) -> None:
    """Members of a new group wait for others, and longer when one comes; also whose own rebalances are shorter."""
    group = asked.name
    asked.group_ready(group)

    def send(client: RawClient, member: str, of: str = group, rebalance_ms: int = SESSION_MS) -> float:
        fields: dict[str, Any] = {"session_timeout": SESSION_MS, "rebalance_timeout": rebalance_ms}
        fields |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": SUBSCRIPTION}]}
        client.send(ApiKey.JOIN_GROUP, 9, group_id=of, member_id=member, **fields)
        return time.monotonic()

    required = asked.join(group)
    asked.note("join without id", required.error_code)
    other = Asked(asked.bootstrap)
    latecomer = other.join(group).member_id
    began_s = send(asked.client, required.member_id)
    asked.note("waits for others", asked.client.is_silent(DELAY_MS / 2_000))
    send(other.client, latecomer)
    first, second = (one.client.receive(ApiKey.JOIN_GROUP, 9) for one in (asked, other))
    asked.note("and for others than those", time.monotonic() - began_s > 1.9 * DELAY_MS / 1_000)
    asked.note("both", first.error_code, second.error_code, len(first.members) + len(second.members))
    asked.note("generations", str(first.generation_id), str(second.generation_id))
    hasty = f"{group}-hasty"
    began_s = send(asked.client, asked.join(hasty).member_id, hasty, DELAY_MS // 2)
    asked.note("alone", asked.client.receive(ApiKey.JOIN_GROUP, 9).error_code)
    asked.note("also with a short rebalance", time.monotonic() - began_s > 0.95 * DELAY_MS / 1_000)
    other.client.close()


def answers(bootstrap: str, ask: Any) -> dict[str, object]:
    asked = Asked(bootstrap)
    try:
        create(asked.client, "topic")
        ask(asked)
    finally:
        asked.client.close()
    return asked.answers


@pytest.mark.parametrize("ask", [ask_about_groups, ask_about_transactions])
def test_answers_are_kafkas(reference: str, kafka: Kafka, ask: Any) -> None:
    ours = answers(reference, ask)
    assert ours == answers(kafka.bootstrap, ask)
    assert len(ours) >= 8


def test_a_new_group_waits_for_members(tmp_path: Path) -> None:
    broker = ReferenceBroker(tmp_path / "reference", group_initial_rebalance_delay_ms=DELAY_MS).start()
    try:
        with own_broker(MavenServer(tmp_path / "real", {"group.initial.rebalance.delay.ms": str(DELAY_MS)})) as real:
            for _ in range(ATTEMPTS):
                ours, theirs = (answers(one, ask_about_the_initial_delay) for one in (broker.bootstrap, real.bootstrap))
                if ours == theirs:
                    break
    finally:
        broker.stop()
    assert ours == theirs
    assert len(ours) >= 7


def test_who_is_silent_is_told_what_kafka_tells(reference: str, kafka: Kafka) -> None:
    for _ in range(ATTEMPTS):
        ours, theirs = (answers(bootstrap, ask_about_who_is_silent) for bootstrap in (reference, kafka.bootstrap))
        if ours == theirs:
            break
    assert ours == theirs
    assert len(ours) >= 8
