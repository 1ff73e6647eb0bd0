"""Governed redrive on a real Kafka: each letter once, whoever is killed, and an end by itself when they fail again."""

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, Producer, TopicPartition

from sidecar.operations.dead_letters.redrive_plan import Progress, Tally
from sidecar.operations.jobs.job import State
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site, headers_of
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: orders
match: {topics: ["~orders-retry"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 10ms}}
"""
WAIT_S = 180.0
AT_ONCE = {"rate": 0, "watch": 0, "confirm_all": True}


class Bench:
    """Dead letters, and the sidecar that redrives them."""

    def __init__(self, site: Site, sidecar: Sidecar) -> None:
        self.site = site
        self.sidecar = sidecar

    def letters(self, role: str, count: int, partitions: int = 3, **target: int) -> None:
        """A target topic and its dead letters; the value is the letter's number."""
        self.site.topic(role, 1, **target)
        topic = self.site.topic(f"{role}-dlq", partitions)
        self.send(topic, [(b"k", b"%d" % n, self.headers(n), 0, n % partitions) for n in range(count)])

    def make_anew(self, role: str, count: int) -> None:
        """The topic of dead letters is deleted and created again, with other letters: their values say `new`."""
        topic, kafka = self.site.name(f"{role}-dlq"), self.site.kafka
        [deleted] = kafka.admin.delete_topics([topic]).values()
        deleted.result(WAIT_S)
        self.wait(
            lambda: topic not in kafka.admin.list_topics(timeout=WAIT_S).topics, lambda: f"{topic} is still there"
        )
        kafka.create_topic(topic, 1)
        self.send(topic, [(b"k", b"new %d" % n, self.headers(n), 0, 0) for n in range(count)])

    def send(self, topic: str, records: list[Any]) -> list[Message]:
        return self.site.kafka.produce(topic, records)

    def headers(self, n: int) -> list[tuple[str, bytes]]:
        given = {"reason": "attempts_exhausted", "policy": "gone@1", "source": f"x-retry/0/{n}", "origin": f"x/0/{n}"}
        given |= {
            "attempt": "3",
            "first-failure": "1",
            "error-class": "E" if n % 2 else "F",
            "error-message": f"at {n}",
        }
        return [("mine", b"1"), *((f"tickover-{name}", value.encode()) for name, value in given.items())]

    def ask(self, method: str, path: str = "", status: int = 202, **body: Any) -> dict[str, Any]:
        options = {"json": body} if body else {}
        response = self.sidecar.call(method, f"/v1/redrives{path}", **options)
        assert response.status_code == status, response.text
        document: dict[str, Any] = response.json()
        return document

    def plan(self, role: str, **body: Any) -> str:
        """A plan that has counted its letters."""
        topic = self.site.name(f"{role}-dlq")
        body.setdefault("target", self.site.name(role))
        plan = self.ask("POST", **{"topic": topic, **AT_ONCE, **body})["id"]
        self.until(plan, "planned")
        return str(plan)

    def run(self, plan: str) -> None:
        """Begin to send the rest: what has just ended may still be closing its clients."""
        self.told(plan, 202)

    def told(self, plan: str, status: int, type: str = "") -> None:
        """Ask for the rest until this is the answer."""
        answers: list[httpx.Response] = []

        def is_told() -> bool:
            answers.append(self.sidecar.call("POST", f"/v1/redrives/{plan}/run"))
            return answers[-1].status_code == status and type in answers[-1].text

        self.wait(is_told, lambda: answers[-1].text)

    def state(self, plan: str) -> dict[str, Any]:
        return self.ask("GET", f"/{plan}", 200)

    def until(self, plan: str, *states: str) -> dict[str, Any]:
        """Wait for one of these states."""
        self.wait(lambda: self.state(plan)["state"] in states, lambda: f"{self.state(plan)} is not {states}")
        return self.state(plan)

    def wait(self, true: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        wait_until(true, WAIT_S, otherwise)

    def arrived(self, role: str) -> Counter[bytes | None]:
        """How often readers of committed records see each value."""
        return Counter(message.value() for message in self.site.kafka.read_all(self.site.name(role)))


@pytest.fixture(scope="module")
def bench(new_site: NewSite) -> Bench:
    site = new_site()
    site.topic("orders-retry")
    site.policies(POLICIES)
    sidecar = site.sidecar("one", REDRIVE__RAMP="0ms")
    return Bench(site, sidecar.start())


def numbers(*ranges: range) -> Counter[bytes | None]:
    return Counter(b"%d" % n for each in ranges for n in each)


def test_plan_canary_run(bench: Bench) -> None:
    bench.letters("whole", 300)
    plan = bench.plan("whole")
    planned = bench.state(plan)["planned"]
    assert (planned["letters"], planned["targets"]) == (300, {bench.site.name("whole"): 300})
    assert len(planned["sample"]) == 10
    bench.send(bench.site.name("whole-dlq"), [(b"k", b"late", bench.headers(0), 0, 0)])  # not of this plan
    assert bench.arrived("whole") == {}
    bench.ask("POST", f"/{plan}/canary", count=7)
    assert bench.until(plan, "canaried")["sent"] == 7
    assert bench.arrived("whole").total() == 7
    bench.run(plan)
    done = bench.until(plan, "done")
    assert (done["sent"], done["records"]["remaining"], done["failed_again"]) == (300, 0, 0)
    assert bench.arrived("whole") == numbers(range(300))
    bench.told(plan, 409, "/problems/redrive-ended")


def test_what_a_redriven_record_carries(bench: Bench) -> None:
    bench.letters("lineage", 2, partitions=1)
    plan = bench.plan("lineage", filter={"error": "AT 1", "key_prefix": "k"}, confirm_all=False)
    bench.run(plan)
    bench.until(plan, "done")
    [message] = bench.site.kafka.read_all(bench.site.name("lineage"))
    assert message.value() == b"1"
    assert headers_of(message) == [
        ("mine", b"1"),
        ("tickover-origin", b"x/0/1"),
        ("tickover-redrive-plan", f"{plan}/1".encode()),
        ("tickover-redrive-count", b"1"),
        ("tickover-redrive-source", f"{bench.site.name('lineage-dlq')}/0/1".encode()),
    ]


def test_an_edited_copy_is_sent_and_the_letter_stays_as_it_is(bench: Bench) -> None:
    bench.letters("edited", 2, partitions=1)
    dead, value = bench.site.name("edited-dlq"), b'{"amount": -3, "card": "4711"}'
    bench.send(dead, [(b"k", value, bench.headers(2), 0, 0)])
    edit = {"merge": {"amount": 3}, "headers": {"mine": "2", "new": "n"}}
    plan = bench.plan("edited", letters=[f"{dead}/0/1", f"{dead}/0/2"], edit=edit)
    planned = bench.state(plan)["planned"]
    assert (planned["letters"], planned["skipped"]) == (1, {"not_editable": 1})
    bench.run(plan)
    bench.until(plan, "done")
    [message] = bench.site.kafka.read_all(bench.site.name("edited"))
    assert message.value() == b'{"amount":3,"card":"4711"}'
    headers = dict(headers_of(message))
    assert (headers["mine"], headers["new"], headers["tickover-edited-by"]) == (b"2", b"n", b"anonymous")
    assert headers["tickover-redrive-source"] == f"{dead}/0/2".encode()
    assert bench.site.kafka.read_all(dead)[2].value() == value
    letter = bench.sidecar.call("GET", f"/v1/dead-letters/{dead}/0/2?payload=true").json()
    assert (letter["payload"]["value"]["amount"], letter["redriven"]["plan"]) == (-3, plan)


def test_what_is_discarded_is_settled_on_every_replica_over_restarts(bench: Bench) -> None:
    bench.letters("binned", 30)
    topic = bench.site.name("binned-dlq")
    other = bench.site.sidecar("beside", REDRIVE__RAMP="0ms").start()
    plan = bench.plan("binned", action="discard", target=None, filter={"error_class": "E"})
    bench.ask("POST", f"/{plan}/canary", count=2)
    assert bench.until(plan, "canaried")["discarded"] == 2
    bench.run(plan)
    done = bench.until(plan, "done")
    assert (done["sent"], done["discarded"], bench.arrived("binned")) == (0, 15, {})

    def open_letters(sidecar: Sidecar) -> int:
        groups = sidecar.call("GET", f"/v1/dead-letters/groups?topic={topic}").json()["items"]
        assert sum(group["count"] for group in groups) == 30, "each is readable"
        return sum(group["open"] for group in groups)

    for sidecar in (bench.sidecar, other):
        bench.wait(lambda sidecar=sidecar: open_letters(sidecar) == 15, lambda: "replicas count otherwise")  # type: ignore[misc]
    other.stop()
    other.start()
    bench.wait(lambda: open_letters(other) == 15, lambda: "a restart has forgotten it")
    other.stop()
    rest = bench.plan("binned")
    assert bench.state(rest)["planned"]["skipped"] == {"discarded": 15}
    bench.run(rest)
    bench.until(rest, "done")
    assert bench.arrived("binned") == numbers(range(0, 30, 2))


def test_too_many_that_fail_again_stop_it(bench: Bench) -> None:
    bench.letters("failing", 400)
    plan = bench.plan("failing", watch="60s", stop_share=0.01, rate=4)
    bench.run(plan)
    dead = bench.site.name("failing-dlq")
    failed = bench.site.kafka.read(bench.site.name("failing"), 8)  # its consumer fails each, and forwards the headers
    bench.send(dead, [(message.key(), message.value(), headers_of(message), 0, 0) for message in failed])
    stopped = bench.until(plan, "stopped")
    assert "failed again" in stopped["reason"]
    assert 1 <= stopped["failed_again"] <= 8
    assert stopped["sent"] < 400
    assert bench.arrived("failing").total() == stopped["sent"]
    bench.ask("POST", f"/{plan}/abort")
    bench.told(plan, 409, "/problems/redrive-ended")


def test_letters_that_were_redriven_often_stay(bench: Bench) -> None:
    bench.letters("looping", 1, partitions=4)  # three of them empty
    counted = [*bench.headers(1), ("tickover-redrive-count", b"3")]
    bench.send(bench.site.name("looping-dlq"), [(b"k", b"often", counted, 0, 0)])
    plan = bench.plan("looping")
    assert bench.state(plan)["planned"]["skipped"] == {"redriven_too_often": 1}
    bench.run(plan)
    assert bench.until(plan, "done")["skipped"] == {"redriven_too_often": 1}
    assert bench.arrived("looping") == numbers(range(1))


def test_a_letter_too_large_for_its_target_is_passed_over(bench: Bench) -> None:
    bench.letters("small", 50, partitions=1, max_message_bytes=2_000)
    bench.send(bench.site.name("small-dlq"), [(b"k", os.urandom(5_000), bench.headers(0), 0, 0)] * 3)
    bench.send(bench.site.name("small-dlq"), [(b"k", b"%d" % n, bench.headers(n), 0, 0) for n in range(50, 60)])
    plan = bench.plan("small")
    bench.run(plan)
    done = bench.until(plan, "done")
    assert (done["sent"], done["skipped"]) == (60, {"too_large": 3})
    assert bench.arrived("small") == numbers(range(60))


def test_a_target_that_is_gone_stops_it(bench: Bench) -> None:
    bench.letters("vanishing", 300)
    plan = bench.plan("vanishing", rate=2)  # slow: it goes on when the target goes
    bench.run(plan)
    bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
    [gone] = bench.site.kafka.admin.delete_topics([bench.site.name("vanishing")]).values()
    gone.result(WAIT_S)
    stopped = bench.until(plan, "stopped")
    assert "target" in stopped["reason"]
    assert stopped["sent"] + stopped["records"]["remaining"] == 300  # nothing is passed over
    bench.told(plan, 409, "/problems/target-gone")


def test_letters_that_retention_takes_before_the_run_are_told_of(bench: Bench) -> None:
    bench.letters("taken", 20, partitions=2)
    plan = bench.plan("taken", filter={"error_class": "E"}, confirm_all=False)  # every other one: those of partition 1
    assert bench.state(plan)["planned"]["letters"] == 10
    topic, admin = bench.site.name("taken-dlq"), bench.site.kafka.admin
    deleted = admin.delete_records([TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 6)])
    assert [one.result(WAIT_S).low_watermark for one in deleted.values()] == [10, 6]
    bench.run(plan)
    done = bench.until(plan, "done")
    assert (done["sent"], done["skipped"]) == (4, {"deleted": 6})
    assert bench.arrived("taken") == numbers(range(13, 20, 2))


@pytest.mark.parametrize("count", [5, 20], ids=["shorter", "longer"])
def test_letters_of_a_topic_that_was_made_anew_are_not_those_of_the_plan(bench: Bench, count: int) -> None:
    role = f"anew-{count}"
    bench.letters(role, 10, partitions=1)
    plan = bench.plan(role)
    bench.make_anew(role, count)
    bench.told(plan, 409, "/problems/letters-gone")
    assert bench.arrived(role) == {}


@pytest.mark.parametrize("count", [5, 400], ids=["shorter", "longer"])
def test_a_topic_that_is_made_anew_during_a_run_ends_its_plan(bench: Bench, count: int) -> None:
    role = f"replaced-{count}"
    bench.letters(role, 300, partitions=1)
    plan = bench.plan(role, rate=2)
    bench.run(plan)
    bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
    bench.make_anew(role, count)
    ended = bench.until(plan, "aborted", "stopped")
    if ended["state"] == "stopped":  # it was gone for a moment
        bench.told(plan, 409, "/problems/letters-gone")
    else:
        assert f"{role}-dlq" in ended["reason"]
        assert "deleted and created again" in ended["reason"]
        bench.told(plan, 409, "/problems/redrive-ended")
    assert bench.arrived(role) <= numbers(range(300))


def test_an_abort_ends_a_run(bench: Bench) -> None:
    bench.letters("ended", 300)
    plan = bench.plan("ended", rate=2)
    bench.run(plan)
    assert bench.ask("POST", f"/{plan}/run", 409)["type"] == "/problems/redrive-active"
    bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
    assert bench.ask("POST", f"/{plan}/abort")["state"] == "aborting"
    assert bench.until(plan, "aborted")["aborted_by"] == "anonymous"


def test_once_a_redrive_is_aborted_no_more_of_it_is_sent(bench: Bench) -> None:
    count = 40_000

    def was_cut(rate: int) -> bool:
        role = f"cut-{rate}"
        bench.letters(role, count)
        plan = bench.plan(role, rate=rate)
        bench.run(plan)
        bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
        bench.sidecar.call("POST", f"/v1/redrives/{plan}/abort")
        ended = bench.until(plan, "aborted", "done")
        assert bench.arrived(role).total() == ended["sent"]
        assert bench.state(plan)["sent"] == ended["sent"]
        return bool(ended["state"] == "aborted")

    # On an idle machine it may be done before it is aborted.
    assert any(was_cut(rate) for rate in (0, 5_000))


def test_a_redrive_whose_process_was_killed_is_aborted_by_its_next_life(bench: Bench) -> None:
    bench.letters("dying", 300)
    plan = bench.plan("dying", rate=2)
    bench.run(plan)
    bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
    bench.sidecar.freeze()
    other = bench.site.sidecar("aborting").start()
    assert other.call("POST", f"/v1/redrives/{plan}/abort").json()["state"] == "aborting"
    other.stop()
    bench.sidecar.kill()
    bench.sidecar.start()
    assert bench.until(plan, "aborted")["sent"] == bench.arrived("dying").total()


def test_a_letter_that_was_sent_is_left_out_by_later_plans_and_one_that_came_back_is_not(bench: Bench) -> None:
    bench.letters("once", 60)
    plan = bench.plan("once", filter={"error_class": "E"}, confirm_all=False)
    bench.run(plan)
    assert bench.until(plan, "done")["sent"] == 30
    groups = bench.sidecar.call("GET", f"/v1/dead-letters/groups?topic={bench.site.name('once-dlq')}").json()["items"]
    assert sorted((group["error_class"], group["redriven"], group["open"]) for group in groups) == [
        ("E", 30, 0), ("F", 0, 30),
    ]  # fmt: skip
    [failed] = bench.site.kafka.read(bench.site.name("once"), 1)  # its consumer fails, and forwards the headers
    bench.send(bench.site.name("once-dlq"), [(failed.key(), failed.value(), headers_of(failed), 0, 0)])
    source = (dict(headers_of(failed))["tickover-redrive-source"] or b"").decode()
    shown = bench.sidecar.call("GET", f"/v1/dead-letters/{source}").json()["redriven"]
    assert (shown["plan"], shown["came_back"]) == (plan, f"{bench.site.name('once-dlq')}/0/20")
    bench.sidecar.stop()
    bench.sidecar.start()
    later = bench.plan("once")
    planned = bench.state(later)["planned"]
    assert (planned["letters"], planned["skipped"]) == (31, {"redriven": 30})
    bench.run(later)
    assert bench.until(later, "done")["skipped"] == {"redriven": 30}
    assert bench.arrived("once") == numbers(range(60)) + Counter([failed.value()])
    assert bench.state(bench.plan("once", again=True))["planned"]["letters"] == 61


def test_what_another_plan_has_sent_since_the_count_is_not_sent_again(bench: Bench) -> None:
    bench.letters("twice", 50)
    first, second = bench.plan("twice"), bench.plan("twice")
    bench.run(first)
    bench.until(first, "done")
    bench.run(second)
    done = bench.until(second, "done")
    assert (done["sent"], done["skipped"]) == (0, {"redriven": 50})
    assert bench.arrived("twice") == numbers(range(50))


def test_open_letters_fall_as_they_are_redriven_on_every_replica(bench: Bench) -> None:
    bench.site.topic("counted")
    topic = bench.site.topic("counted-dlq", 2)
    writer = Producer({"bootstrap.servers": bench.site.kafka.bootstrap, "transactional.id": topic})
    writer.init_transactions(WAIT_S)
    for number in range(6):  # a transaction each, as the sidecar writes them: their marks have offsets, too
        writer.begin_transaction()
        writer.produce(topic, b"%d" % number, b"k", number % 2, headers=dict(bench.headers(number)))
        writer.commit_transaction(WAIT_S)
    plan = bench.plan("counted")
    bench.run(plan)
    assert bench.until(plan, "done")["sent"] == 6
    bench.send(topic, [(b"k", b"new", bench.headers(0), 0, 0)])
    other = bench.site.sidecar("counting").start()

    def told() -> list[str]:
        lines = other.call("GET", "/metrics").text.splitlines()
        return [line for line in lines if line.startswith(f'tickover_dead_letters_open{{topic="{topic}"}}')]

    bench.wait(lambda: [line.split()[-1] for line in told()] == ["1.0"], lambda: f"not 1: {told()}")
    listed = other.call("GET", f"/v1/dead-letters?topic={topic}&open=true").json()["items"]
    assert [(item["partition"], item["redriven"]) for item in listed] == [(0, None)]
    other.stop()


def test_two_plans_that_begin_at_the_same_moment_send_each_letter_once(bench: Bench) -> None:
    bench.letters("both", 3_000)
    other = bench.site.sidecar("beside", REDRIVE__RAMP="0ms").start()
    plans = bench.plan("both"), bench.plan("both")
    with ThreadPoolExecutor(2) as threads:
        asked = zip((bench.sidecar, other), plans, strict=True)
        answers = list(threads.map(lambda ask: ask[0].call("POST", f"/v1/redrives/{ask[1]}/run").status_code, asked))
    assert 202 in answers
    assert set(answers) <= {202, 409}
    for plan, answer in zip(plans, answers, strict=True):
        if answer == 409:
            bench.run(plan)
    assert sum(bench.until(plan, "done")["sent"] for plan in plans) == 3_000
    assert bench.arrived("both") == numbers(range(3_000))
    other.stop()


def test_a_plan_waits_for_another_that_may_send_its_letters(bench: Bench) -> None:
    bench.letters("queue", 300)
    first, second, third = (bench.plan("queue", rate=rate) for rate in (2, 0, 0))
    bench.run(first)
    bench.wait(lambda: bench.state(first)["sent"] > 0, lambda: "nothing is sent")
    bench.told(third, 409, "/problems/letters-busy")
    # As one that began at the same moment, and died while it chose its turn.
    targets = {bench.site.name("queue"): 300}
    began = Progress(state=State.RUNNING, owner="dead", leg=1, planned=Tally(targets=targets))
    key = f"{second}/progress".encode()
    bench.send(f"tickover.{bench.site.group}.redrives", [(key, began.model_dump_json().encode(), [], 0, 0)])
    bench.wait(lambda: first in str(bench.state(second)["reason"]), lambda: f"{bench.state(second)}")
    assert bench.state(second)["sent"] == 0
    bench.ask("POST", f"/{first}/abort")
    sent = bench.until(first, "aborted")["sent"]
    done = bench.until(second, "done")
    assert (done["sent"], done["skipped"], done["reason"]) == (300 - sent, {"redriven": sent}, None)
    assert bench.arrived("queue") == numbers(range(300))


def test_killed_in_mid_run_it_goes_on_and_sends_each_letter_once(bench: Bench) -> None:
    count = 8_000

    def was_cut(rate: int) -> bool:
        role = f"killed-{rate}"
        bench.letters(role, count)
        plan = bench.plan(role, rate=rate)
        bench.run(plan)
        bench.wait(lambda: bench.state(plan)["sent"] > count / 10, lambda: "nothing is sent")
        bench.sidecar.kill()
        before = bench.arrived(role).total()
        bench.sidecar.start()
        assert bench.until(plan, "done")["sent"] == count
        assert bench.arrived(role) == numbers(range(count))
        return before < count

    # On a busy machine it may be done before it is killed.
    assert any(was_cut(rate) for rate in (3_000, 500, 100))


def test_a_zombie_that_wakes_up_after_a_takeover_sends_nothing(bench: Bench) -> None:
    count = 1_000
    other = bench.site.sidecar("two", REDRIVE__RAMP="0ms").start()

    def was_taken(rate: int) -> bool:
        role = f"frozen-{rate}"
        bench.letters(role, count)
        plan = bench.plan(role, rate=rate)
        bench.run(plan)
        bench.wait(lambda: bench.state(plan)["sent"] > 0, lambda: "nothing is sent")
        bench.sidecar.freeze()

        def taken() -> dict[str, Any]:
            document: dict[str, Any] = other.call("GET", f"/v1/redrives/{plan}").json()
            return document

        bench.wait(lambda: is_left(taken()), lambda: f"nobody took over: {taken()}")
        owner = taken()["owner"]
        bench.sidecar.thaw()
        bench.wait(lambda: taken()["state"] == "done", lambda: f"not done: {taken()}")
        assert taken()["sent"] == count
        assert bench.arrived(role) == numbers(range(count))
        return bool(owner == "two")

    # On a busy machine it may be done before it is frozen.
    assert any(was_taken(rate) for rate in (100, 10))
    other.stop()


def is_left(document: dict[str, Any]) -> bool:
    """Whether whoever was frozen has no more to do with it."""
    return bool(document["owner"] == "two" or document["state"] == "done")
