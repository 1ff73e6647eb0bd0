"""The rule of the policy topic: whatever is in it, every reader has the same history."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import NewerSchema
from policies.model import Policy, Removed, Versioned
from policies.topic.log import SCHEMA, Change, PolicyLog, decode_change, encode_change


def policy(name: str, delay_ms: int = 1) -> Policy:
    return Policy.model_validate(
        {
            "name": name,
            "match": {"topics": [name], "headers": {"ü": "*"}},
            "delay": {"default": delay_ms},
            "target": {"topic": "t"},
        }
    )


def change(name: str, expected: int, delay_ms: int | None = 1, write: str = "w") -> Change:
    wanted = None if delay_ms is None else policy(name, delay_ms)
    return Change(write=write, name=name, expected=expected, author="ünsal", managed_by="api", policy=wanted)


names = st.sampled_from(["a", "b"])
changes = st.builds(change, names, st.integers(0, 6), st.none() | st.integers(0, 5))
garbage = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([b"{}", b"[]", b"null", b'{"schema":1}', b'{"schema":1,"schema":1}', b'{"schema":0}']),
)
topics = st.lists(st.one_of(changes.map(encode_change), changes.map(encode_change), garbage), max_size=30)


def read(records: list[bytes | None]) -> PolicyLog:
    log = PolicyLog()
    for offset, value in enumerate(records):
        log.apply(offset, value, offset * 10)
    return log


@given(topics)
def test_every_reader_has_the_same_history_and_a_model_agrees(records: list[bytes | None]) -> None:
    log = PolicyLog()
    alive: dict[str, tuple[int, int | None]] = {}
    counts: dict[str, int] = {}
    for offset, value in enumerate(records):
        verdict = log.apply(offset, value, offset * 10)
        try:
            asked = json.loads(value or b"null")
            name, expected, wanted = asked["name"], asked["expected"], asked["policy"]
        except (ValueError, KeyError, TypeError):
            assert verdict is None
            continue
        assert verdict is not None
        wins = expected == alive.get(name, (0, 0))[0] and (wanted is not None or name in alive)
        assert (verdict.won is not None) == wins
        if wins:
            counts[name] = counts.get(name, 0) + 1
            alive.pop(name, None)
            if wanted is not None:
                alive[name] = (counts[name], wanted["delay"].get("default"))
    assert {name: found.version for name, found in log.table.policies.items()} == {
        name: version for name, (version, _) in alive.items()
    }
    again = read(records)
    assert again.table.policies == log.table.policies
    assert {name: [entry.version for entry in again.versions(name)] for name in "ab"} == {
        name: list(range(1, counts.get(name, 0) + 1)) for name in "ab"
    }


@given(topics)
def test_any_past_table_is_what_a_reader_had_then(records: list[bytes | None]) -> None:
    whole = read(records)
    log = PolicyLog()
    for offset, value in enumerate(records):
        log.apply(offset, value, offset * 10)
        past = whole.table_at(log.table.version)
        assert past.version == log.table.version
        assert past.policies == log.table.policies
    assert whole.table_at(0).policies == {}


@given(st.lists(st.tuples(st.integers(0, 2), names), min_size=1, max_size=40))
def test_interleaved_writers_who_read_before_they_write_never_overwrite_unseen(
    turns: list[tuple[int, str]],
) -> None:
    """Each writer counts up from what it last saw; the sum of won writes is the version."""
    log = PolicyLog()
    seen: dict[tuple[int, str], int] = {}
    won = {"a": 0, "b": 0}
    for offset, (writer, name) in enumerate(turns):
        expected = seen.get((writer, name), 0)
        verdict = log.apply(offset, encode_change(change(name, expected, write=f"{writer}")), 0)
        assert verdict is not None
        if verdict.won is not None:
            won[name] += 1
            assert verdict.won.version == expected + 1
        seen[writer, name] = log.current_version(name)
    assert {name: log.current_version(name) for name in won} == won


def test_a_removed_name_is_created_anew_with_the_next_version() -> None:
    log = read([encode_change(change("a", 0)), encode_change(change("a", 1, None)), encode_change(change("a", 0, 7))])
    first, removed, second = log.versions("a")
    assert isinstance(first, Versioned)
    assert isinstance(removed, Removed)
    assert isinstance(second, Versioned)
    assert [first.version, removed.version, second.version] == [1, 2, 3]
    assert (second.time_ms, second.author) == (20, "ünsal")
    assert log.current_version("a") == 3
    assert log.table.version == 3
    assert log.table_at(2).policies == {}


def test_nothing_cannot_be_removed() -> None:
    log = read([encode_change(change("a", 0, None))])
    assert log.versions("a") == ()
    assert (log.table.version, log.position) == (0, 1)


def test_garbage_moves_the_position_but_not_the_table() -> None:
    log = read([encode_change(change("a", 0))])
    before = log.table
    log.apply(1, b"\x00", 0)
    assert log.table is before
    assert log.position == 2


def altered(**fields: Any) -> bytes:
    document = json.loads(encode_change(change("a", 0)))
    document.update(fields)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "value",
    [
        altered(schema=0),
        altered(schema=True),
        altered(schema="2"),
        altered(schema=None),
        altered(expected=-1),
        altered(expected="0"),
        altered(expected=True),
        altered(expected=1.5),
        altered(name="b"),
        altered(name="A"),
        altered(author="\ud83d"),
        altered(author="a" * 257),
        altered(managed_by="me"),
        altered(more=1),
        altered(write=""),
        altered(policy={"name": "a"}),
        altered(policy=float("nan")),
        altered()[:-1] + b',"schema":1}',
        altered() + b" " * (512 * 1024),
        b"\xff",
        b"[" * 100_000,
        b"9" * 10_000,
        b"",
        None,
    ],
)
def test_what_is_no_change_is_garbage(value: bytes | None) -> None:
    assert decode_change(value, 0) is None
    assert decode_change(altered(), 0) is not None


def test_a_newer_schema_stops_the_reader_where_it_is() -> None:
    log = read([encode_change(change("a", 0))])
    with pytest.raises(NewerSchema, match=f"offset 1 has schema {SCHEMA + 1}"):
        log.apply(1, json.dumps({"schema": SCHEMA + 1, "anything": []}).encode(), 0)
    assert log.position == 1


def test_what_schema_1_cannot_say_is_schema_2_and_garbage_under_1() -> None:
    """A reader of schema 1 passes over what it takes for garbage, so every reader must; schema 2 stops it."""
    plain = json.loads(encode_change(change("a", 0)))
    assert plain["schema"] == 1
    plain["policy"]["delay"]["spread"] = "3s"
    assert decode_change(json.dumps(plain).encode(), 0) is None
    plain["schema"] = 2
    spread = decode_change(json.dumps(plain).encode(), 0)
    assert spread is not None
    assert json.loads(encode_change(spread))["schema"] == 2


@given(changes)
def test_a_change_reads_back_equal(wanted: Change) -> None:
    assert decode_change(encode_change(wanted), 0) == wanted
