"""The policies file: documents in, policies or an error with its line out."""

from pathlib import Path

import pytest

from policies.errors import PolicyFileError
from policies.file import parse_policies, read_policies_file

GOOD = """\
---
name: orders-retry
match: {topics: ["orders-retry"], headers: {tenant: "gold*"}}
retry:
  attempts: 5
  backoff: {kind: exponential, initial: 1s, factor: 2, max: 10m, jitter: full}
  timeout: 24h
  retry_on: ["*"]
  give_up_on: ["*.ValidationError"]
target: {topic: orders, allow: ["orders"]}
dead_letter: {topic: orders-dlq}
---
# nothing here
---
name: reminders
match: {topics: ["reminders"]}
delay: {default: 15m, max: 400d}
target: {allow: ["mail-*", "push"]}
"""


def test_documents_become_policies_in_order_and_empty_ones_are_passed_over() -> None:
    assert [policy.name for policy in parse_policies(GOOD)] == ["orders-retry", "reminders"]


@pytest.mark.parametrize("text", ["", "---\n", "# only words\n", "---\n---\n"])
def test_a_file_may_hold_no_policy(text: str) -> None:
    assert parse_policies(text) == ()


def one(delay: str = "{default: 15m}", more: str = "") -> str:
    return f"name: a\nmatch: {{topics: [a]}}\ntarget: {{topic: b}}\ndelay: {delay}\n{more}"


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (one("{default: soon}"), 4, "delay.default: not a duration"),
        (one("{default: 1:30}"), 4, "no decimal number"),
        (one("{default: 010}"), 4, "no decimal number"),
        (one("{default: 0x10}"), 4, "no decimal number"),
        (one("{default: 1_000}"), 4, "no decimal number"),
        (one("{default: 1.5}"), 4, "delay.default: a fraction needs its unit"),
        (one("{default: '1:30'}"), 4, "isn't written as on a clock"),
        (
            one("\n  default: 1m\n  most: 2m"),
            6,
            "delay.most: unknown key; known here: default, max",
        ),
        (one(more="retry: {attempts: 1, backoff: {kind: fixed, delay: 1s}}"), 1, "exactly one of"),
        (one(more="retry:\n  attempts: 1\n  backoff:\n    kind: exponential\n    initial: x"), 9, "initial"),
        (GOOD + "---\n" + GOOD, 21, "policy orders-retry stands twice"),
        (one(more="name: b"), 5, "the key name is given twice"),
        (one("{default: 1m, default: 2m}"), 4, "the key default is given twice"),
        ("- a\n- b\n", 1, "a policy is a mapping"),
        ("just text", 1, "a policy is a mapping"),
        ("name: [a\nmatch: b\n", 2, "expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("name: \x00\n", 1, "a character that YAML does not allow"),
        ("? [a]\n: b\n", 1, "a key must be a text"),
        ("name: !!python/object:os.system x\n", 1, "could not determine a constructor"),
        ("name: 2026-13-45\n", 1, "not a plain value"),
        (BOMB, 1, "more than 200000 values"),
        ("[" * 50 + "]" * 50, 1, "nested deeper than 40"),
        ("[" * 5_000 + "]" * 5_000, 0, "nested deeper than 40"),
        ("a: &x [*x]\n", 1, "nested deeper than 40"),
        ("a: *unknown\n", 1, "undefined alias"),
    ],
)
def test_an_error_names_line_and_problem(text: str, line: int, problem: str) -> None:
    with pytest.raises(PolicyFileError) as caught:
        parse_policies(text, "p.yaml")
    assert problem in str(caught.value)
    assert caught.value.line == line
    assert str(caught.value).startswith("p.yaml:")


def test_all_faults_of_all_documents_are_told_at_once_with_their_lines() -> None:
    text = "name: A\nmatch: {topcs: [a]}\ndelay:\n  default: soon\n  maxx: 2d\ntarget: {topic: b}\n---\nname: c\n"
    with pytest.raises(PolicyFileError) as caught:
        parse_policies(text, "p.yaml")
    assert str(caught.value).splitlines() == [
        "p.yaml:2:16: match.topcs: unknown key; did you mean topics?",
        "p.yaml:5:3: delay.maxx: unknown key; did you mean max?",
        "p.yaml:1:1: name: must be 1 to 63 of a-z 0-9 . - and begin with a letter or digit",
        "p.yaml:4:3: delay.default: not a duration (write 250ms, 90s, 15m, 2h, 3d, 1h30m or PT90S)",
        "p.yaml:8:1: match: is missing",
    ]


def test_of_many_faults_the_first_are_told_and_the_rest_counted() -> None:
    with pytest.raises(PolicyFileError) as caught:
        parse_policies("---\n".join(f"name: n{number}\n" for number in range(30)), "p.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "p.yaml: and 10 more"


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert len(read_policies_file(path)) == 2


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "---\n---\n"])
def test_a_file_without_a_policy_is_refused(tmp_path: Path, text: str) -> None:
    """An empty file would delete all that the file managed."""
    path = tmp_path / "policies.yaml"
    path.write_text(text)
    with pytest.raises(PolicyFileError, match=r"no policy in it.*leave policies\.file unset"):
        read_policies_file(path)


def test_a_file_that_is_missing_too_large_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="No such file"):
        read_policies_file(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(PolicyFileError, match="larger than"):
        read_policies_file(large)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: a\nmatch: \xff\n")
    with pytest.raises(PolicyFileError, match=r"binary\.yaml:2:1: not UTF-8"):
        read_policies_file(binary)
