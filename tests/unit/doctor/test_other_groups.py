import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.doctor.facts import Severity
from sidecar.doctor.other_groups import NewGroupError, findings_of, others_with, refuse_if_new
from sidecar.ledger.commit_metadata import CommitState, RenameMark, encode_mark, encode_metadata
from sidecar.model.record import Position

TOPICS = ["orders", "reminders", "tickover.old.ledger", "tickover.a.b.ledger", "tickover.new.ledger", "mail"]
OURS = encode_metadata(CommitState(7, Position(0, 0), 0, 8, 8, 8, 0, "x", 0))


class Groups:
    """Committed topics by group, with the metadata; or the code of an error."""

    def __init__(self, **groups: dict[str, str] | int) -> None:
        self.groups = {name.replace("_", "."): topics for name, topics in groups.items()}

    def commits(self, group: str) -> list[TopicPartition]:
        """As `group_commits`."""
        known = self.groups.get(group, {})
        if isinstance(known, int):
            raise KafkaException(KafkaError(known))
        return [TopicPartition(topic, 0, 7, text) for topic, text in known.items()]


def others(groups: Groups, *sources: str) -> dict[str, list[str]]:
    return others_with(groups.commits, "new", TOPICS, sources)


def test_who_has_the_sources_of_a_new_group_is_named_with_them() -> None:
    groups = Groups(old={"orders": OURS, "elsewhere": OURS}, a_b={"reminders": OURS, "orders": OURS})
    assert others(groups, "orders", "reminders") == {"a.b": ["orders", "reminders"], "old": ["orders"]}
    assert others(groups, "mail") == {}
    assert others(groups) == {}


def test_a_group_that_has_commits_of_ours_is_not_new() -> None:
    assert others(Groups(old={"orders": OURS}, new={"reminders": OURS}), "orders") == {}
    assert others(Groups(old={"orders": OURS}, new={"reminders": ""}), "orders") == {"old": ["orders"]}


def test_a_group_that_is_renamed_or_was_has_its_sources_and_is_not_new() -> None:
    mark = encode_mark(RenameMark("old", "a.b", OURS))
    assert others(Groups(old={"orders": mark}, a_b={"reminders": mark}), "orders", "reminders") == {
        "a.b": ["reminders"],
        "old": ["orders"],
    }
    assert others(Groups(old={"orders": OURS}, new={"orders": mark}), "orders") == {}


def test_commits_of_other_programs_do_not_count() -> None:
    assert others(Groups(old={"orders": "somebody else's"}), "orders") == {}


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.GROUP_ID_NOT_FOUND])
def test_a_group_that_may_not_be_seen_is_passed_over(code: int) -> None:
    assert others(Groups(old=code, a_b={"orders": OURS}), "orders") == {"a.b": ["orders"]}


def test_no_answer_is_no_answer() -> None:
    with pytest.raises(KafkaException):
        others(Groups(old=KafkaError.REQUEST_TIMED_OUT), "orders")


def test_it_says_what_would_happen_and_what_to_do() -> None:
    groups = Groups(old={"orders": OURS})
    with pytest.raises(NewGroupError, match=r"old has orders.*TICKOVER_GROUP=old.*once more.*TICKOVER_START="):
        refuse_if_new(groups.commits, "new", TOPICS, ["orders"])
    refuse_if_new(groups.commits, "new", TOPICS, ["reminders"])
    [finding] = findings_of("new", others(groups, "orders"))
    assert (finding.severity, finding.part) == (Severity.ERROR, "group new")
    assert "TICKOVER_START" in finding.fix
    assert list(findings_of("new", {})) == []
