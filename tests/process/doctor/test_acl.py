"""Rights that follow from settings and policies, and how they are written."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model import Policy
from policies.topic.kafka_tools import KafkaTools
from sidecar.cli.app import app
from sidecar.doctor.acl import (
    Pattern,
    Right,
    Rights,
    kafka_commands,
    kafka_rights,
    literal,
    of_glob,
    redis_command,
    redis_rights,
    redis_rules_command,
    without_covered,
)
from sidecar.doctor.redis_tools import RedisTools, redis_tools
from sidecar.settings.redis import RedisSettings
from sidecar.settings.settings import Settings


def prefixed(name: str) -> Pattern:
    return Pattern("prefixed", name)


def delay(topics: list[str], allow: list[str], **more: Any) -> Policy:
    document = {"name": "d", "match": {"topics": topics}, "delay": {"max": "1d"}, "target": {"allow": allow}, **more}
    return Policy.model_validate(document)


def retry(topics: list[str], **more: Any) -> Policy:
    backoff = {"kind": "fixed", "delay": "1s"}
    document = {"name": "r", "match": {"topics": topics}, "retry": {"attempts": 1, "backoff": backoff}, **more}
    return Policy.model_validate(document)


def topics_of(found: Rights) -> dict[Pattern, str]:
    """Operations on the users' topics by pattern, as letters: r, w, c(onfigs), d(escribe), + for create."""
    letters = {"Read": "r", "Write": "w", "DescribeConfigs": "c", "Create": "+", "Describe": "d"}
    return {
        right.pattern: "".join(letters[operation] for operation in right.operations)
        for right in found.rights
        if right.resource == "topic" and not right.pattern.name.startswith("tickover.")
    }


@pytest.mark.parametrize(
    ("glob", "patterns"),
    [
        ("orders", [literal("orders")]),
        ("orders-*", [prefixed("orders-")]),
        ("*", [literal("*")]),
        ("*-retry", [literal("a-retry"), literal("b-retry")]),
        ("a-?etry", [literal("a-retry")]),
        ("a-*y", [literal("a-retry")]),
        ("[ab]-retry", [literal("a-retry"), literal("b-retry")]),
        ("x-?", None),
    ],
)
def test_globs_that_kafka_knows_are_patterns_and_others_are_names(glob: str, patterns: list[Pattern] | None) -> None:
    assert of_glob(glob, ["a-retry", "b-retry", "c"]) == patterns


def test_what_another_pattern_covers_is_left_out() -> None:
    some = [literal("mail-x"), prefixed("mail-"), prefixed("mail-y"), literal("push"), literal("push")]
    assert list(without_covered(some)) == [prefixed("mail-"), literal("push")]
    assert list(without_covered([*some, literal("*")])) == [literal("*")]


@pytest.mark.parametrize(
    ("policy", "sources", "wanted"),
    [
        (delay(["in"], ["out"]), "", {literal("in"): "rwc", literal("out"): "wc", literal("in-dlq"): "rw"}),
        (
            delay(["in"], ["out-*", "out-a"], dead_letter={"topic": "dead"}), "",
            {literal("in"): "rwc", prefixed("out-"): "wc", literal("dead"): "rw"},
        ),
        (retry(["o-retry"]), "", {literal("o-retry"): "rwc", literal("o"): "wc", literal("o-dlq"): "rw"}),
        (
            retry(["o-retry"], target={"topic": "t"}), "",
            {literal("o-retry"): "rwc", literal("t"): "wc", literal("t-dlq"): "rw"},
        ),
        (retry(["orders-*"]), "", {prefixed("orders-"): "rwc"}),  # targets and dead letters begin alike
        (retry(["*-retry"]), "o-retry,x", {literal("o-retry"): "rwc", literal("x"): "rwc", literal("o"): "wc",
                                           literal("o-dlq"): "rw"}),
        (retry(["shop-eu-*"]), "shop-*", {prefixed("shop-"): "rwc"}),
        (delay(["*"], ["*"]), "", {literal("*"): "rwc"}),
        (delay(["a"], ["a"]), "", {literal("a"): "rwc", literal("a-dlq"): "rw"}),
    ],
)  # fmt: skip
def test_rights_on_topics(policy: Policy, sources: str, wanted: dict[Pattern, str]) -> None:
    found = kafka_rights(Settings.model_validate({"sources": sources}), [policy])
    assert topics_of(found) == wanted
    assert found.unresolved == []


def test_own_topics_are_no_sources() -> None:
    found = kafka_rights(Settings(), [delay(["tickover.policies"], ["out"])])
    [policies] = [right for right in found.rights if right.pattern.name == "tickover.policies"]
    assert policies.role == "policies"


def test_globs_without_a_pattern_want_the_names_of_topics() -> None:
    policy = retry(["*-retry"], target={"allow": ["*-b"]})
    unknown = kafka_rights(Settings(), [policy])
    assert topics_of(unknown) == {}
    assert unknown.unresolved == [("match.topics", "*-retry"), ("target.allow of r", "*-b")]
    known = kafka_rights(Settings(), [policy], ["o-retry", "a-b", "x-dlq", "unrelated"])
    assert known.unresolved == []
    assert topics_of(known) == {
        literal("o-retry"): "rwc", literal("o"): "wc", literal("a-b"): "wc", literal("o-dlq"): "rw",
        literal("a-b-dlq"): "rw", literal("x-dlq"): "r",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("allowed", "wanted"),
    [
        (["out-*"], {literal("in"): "rwc", prefixed("out-"): "wc", literal("out-a-dlq"): "r"}),
        (["*"], {literal("in"): "r", literal("*"): "wc", literal("in-dlq"): "r", literal("out-a-dlq"): "r"}),
    ],
)
def test_dead_letters_of_a_prefix_are_read_by_their_names_and_its_targets_are_not_read(
    allowed: list[str], wanted: dict[Pattern, str]
) -> None:
    settings = Settings.model_validate({"dead_letters": {"topics": []}})
    policy = retry(["in"], target={"allow": allowed})
    unknown = kafka_rights(settings, [policy])
    assert unknown.unresolved == [("dead letters of r", f"{allowed[0]}-dlq")]
    known = kafka_rights(settings, [policy], ["in", "in-dlq", "out-a", "out-a-dlq"])
    assert known.unresolved == []
    assert topics_of(known) == wanted


def test_dead_letters_of_a_prefix_that_have_a_name_or_are_sources_are_not_looked_for() -> None:
    named = kafka_rights(Settings(), [retry(["in"], target={"allow": ["out-*"]}, dead_letter={"topic": "dead"})])
    assert topics_of(named) == {literal("in"): "rwc", prefixed("out-"): "wc", literal("dead"): "rw"}
    sources = kafka_rights(Settings(), [retry(["out-*"], target={"allow": ["out-x-*"]})])
    assert topics_of(sources) == {prefixed("out-"): "rwc"}
    assert named.unresolved == sources.unresolved == []


def test_rights_follow_the_settings() -> None:
    def ids(settings: Settings) -> set[Pattern]:
        return {right.pattern for right in kafka_rights(settings, []).rights if right.resource == "transactional-id"}

    once, least = Settings(group="g"), Settings(group="g", guarantee="at_least_once")
    assert ids(once) - ids(least) == {prefixed("tickover.g:")}
    assert ids(least) < ids(once)
    created = {right.operations for right in kafka_rights(once, []).rights}
    existing = {right.operations for right in kafka_rights(once, [], creates=False).rights}
    assert any("Create" in operations for operations in created)
    assert not any("Create" in operations for operations in existing)
    assert not any(right.resource == "cluster" for right in kafka_rights(once, []).rights)  # type: ignore[comparison-overlap]


def test_a_command_gives_all_rights_of_one_kind() -> None:
    rights = [
        Right("topic", literal("a"), ("Read", "Write"), "source"),
        Right("topic", literal("b"), ("Read", "Write"), "source"),
        Right("topic", literal("*"), ("Write",), "target"),
        Right("transactional-id", prefixed("t:"), ("Write",), "engine"),
    ]
    commands = [shlex.split(line) for line in kafka_commands(rights, "User:CN=x, O=y", KafkaTools("k:9092"))]
    head = ["kafka-acls.sh", "--bootstrap-server", "k:9092", "--add", "--allow-principal", "User:CN=x, O=y"]
    assert [command[: len(head)] for command in commands] == [head] * 3
    assert [" ".join(command[len(head) :]) for command in commands] == [
        "--operation Read --operation Write --topic a --topic b --resource-pattern-type literal",
        "--operation Write --topic * --resource-pattern-type literal",
        "--operation Write --transactional-id t: --resource-pattern-type prefixed",
    ]


def test_redis_rights_follow_the_url() -> None:
    def commands(url: str) -> set[str]:
        return set(redis_rights(Settings.model_validate({"group": "g", "redis": {"url": url}})).commands)

    plain = commands("redis://h")
    assert commands("rediss://h/0") == commands("embedded") == plain
    assert commands("redis://h/2") - plain == {"select"}
    assert commands("redis+cluster://h") ^ plain == {"asking", "cluster|slots", "command", "script|load"}
    rights = redis_rights(Settings(group="g"))
    line = shlex.split(redis_command(rights, "u", RedisTools()).partition(" | ")[2])
    assert line == ["redis-cli", "-x", "ACL", "SETUSER", "u", "reset", "on", *rights.rules]
    assert shlex.split(redis_rules_command(rights, "u", RedisTools())) == ["redis-cli", *line[2:5], *rights.rules]
    assert {"~{g:*", "&tickover:g:questions", "+script|load", "-@all"} < set(line)


@pytest.mark.parametrize(
    ("redis", "asked"),
    [
        ({"url": "redis://h:6380/2"}, ["-h h -p 6380 CONFIG GET save"]),
        (
            {"url": "rediss://h", "ca_file": "/my ca.pem", "password": "hunter2"},
            ["--tls --cacert /my ca.pem -h h -p 6379 CONFIG GET save"],
        ),
        ({"url": "unix:///run/r.sock"}, ["-s /run/r.sock CONFIG GET save"]),
        ({"url": "redis+cluster://a:1,b:2"}, ["--cluster call a:1 CONFIG GET save"]),
        (
            {"url": "redis+sentinel://s/main"},
            ["-h s -p 26379 SENTINEL get-master-addr-by-name main", "-h 10.0.0.1 -p 6379 CONFIG GET save"],
        ),
    ],
)
def test_a_command_for_redis_can_be_pasted_and_has_no_secret(
    tmp_path: Path, redis: dict[str, str], asked: list[str]
) -> None:
    """A shell runs it; a redis-cli of the test notes what it was asked, and is Sentinel as well."""
    program = tmp_path / "redis-cli"
    program.write_text('#!/bin/sh\necho "$@" >> asked\necho "$REDISCLI_AUTH" > auth\necho 10.0.0.1\necho 6379\n')
    program.chmod(0o755)
    command = redis_tools(RedisSettings.model_validate(redis)).command("CONFIG GET save")
    assert "hunter2" not in command

    def run(**variables: str) -> int:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
        return done.returncode

    if "password" in redis:
        assert run() != 0
        assert not (tmp_path / "asked").exists(), "nothing was asked without the password"
    assert run(REDISCLI_AUTH="given") == 0
    assert (tmp_path / "asked").read_text().splitlines() == asked
    assert (tmp_path / "auth").read_text() == "given\n"


@pytest.mark.parametrize("password", ["plain", """a b'"$x`\\%s>""", ""])
def test_the_password_for_redis_is_no_argument_of_a_program(tmp_path: Path, password: str) -> None:
    program = tmp_path / "redis-cli"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > arguments\ncat > stdin\n")
    program.chmod(0o755)
    command = redis_command(redis_rights(Settings(group="g")), "u", RedisTools())
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **({"REDIS_PASSWORD": password} if password else {})}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    if not password:
        assert done.returncode != 0
        assert b"the password of this user" in done.stderr
        assert not (tmp_path / "stdin").exists(), "nothing was asked of Redis"
        return
    assert done.returncode == 0
    assert (tmp_path / "stdin").read_text() == ">" + password
    assert password not in (tmp_path / "arguments").read_text()


REDIS_CLI = r"""#!/bin/sh
echo "$@" >> asked
case "$*" in
  *"CLUSTER NODES") printf '%s\n' "$NODES" ;;
  *get-master-addr*) printf '10.0.0.1\n6379\n' ;;
  *"-h gone "*) exit 1 ;;
  *" -x "*) cat >> stdin; echo >> stdin ;;
esac
"""
NODES = """1 10.0.0.1:7000@17000 master - 0 0 1 connected
2 fd00::2:7001@17001,two.example slave 1 0 0 1 connected
3 :0@0 master,noaddr - 0 0 2 disconnected
4 :7002@17002 myself,master - 0 0 3 connected"""


@pytest.mark.parametrize(
    ("url", "nodes", "asked", "made"),
    [
        ("redis://h:1", "", [], ["-h h -p 1"]),
        (
            "redis+sentinel://s/main", "", ["-h s -p 26379 SENTINEL get-master-addr-by-name main"],
            ["-h 10.0.0.1 -p 6379"],
        ),
        (
            "redis+cluster://a:7009", NODES, ["-h a -p 7009 CLUSTER NODES"],
            ["-h 10.0.0.1 -p 7000", "-h fd00::2 -p 7001", "-h a -p 7002"],
        ),
        ("redis+cluster://a:7009", "1 gone:1@2 master\n2 b:1@2 slave 1", ["-h a -p 7009 CLUSTER NODES"], ["-h b -p 1"]),
    ],
    ids=["one server", "sentinel", "cluster", "a node of the cluster is gone"],
)  # fmt: skip
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_user_is_made_where_tickover_logs_in(
    url: str, nodes: str, asked: list[str], made: list[str], shell: str, tmp_path: Path
) -> None:
    program = tmp_path / "redis-cli"
    program.write_text(REDIS_CLI)
    program.chmod(0o755)
    settings = Settings.model_validate({"group": "g", "redis": {"url": url}})
    command = redis_command(redis_rights(settings), "u", redis_tools(settings.redis))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "REDIS_PASSWORD": "geheim", "NODES": nodes}
    done = subprocess.run([shell, "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    lines = (tmp_path / "asked").read_text().splitlines()
    users = [line.partition(" -x ACL SETUSER u ") for line in lines if " -x " in line and "-h gone " not in line]
    assert [line for line in lines if " -x " not in line] == asked
    assert [where for where, _, _ in users] == made
    assert (tmp_path / "stdin").read_text().split() == [">geheim"] * len(made)
    assert done.returncode == int("gone" in nodes), "who runs it hears of a node that was left out"


def print_acl(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["acl", "print", *arguments], input=stdin, prog_name="tickover")
    return result.exit_code, result.stdout, result.stderr


POLICY = """
name: r
match: {topics: ["*-retry"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 1s}}
"""


def test_the_command_prints_what_is_known_and_says_what_is_not(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(POLICY)
    status, shown, said = print_acl("-f", str(file), "-o", "json")
    assert status == 1
    assert "not listed: match.topics *-retry" in said
    status, shown, said = print_acl("-f", str(file), "--topics", "-", "-o", "json", stdin="a\nb-retry\n")
    assert (status, said) == (0, "")
    document = json.loads(shown)
    assert {"resource": "topic", "pattern": "literal", "name": "b", "operations": ["Write", "DescribeConfigs"],
            "role": "target"} in document["kafka"]  # fmt: skip
    assert document["redis"]["rule"].startswith("resetkeys resetchannels -@all ~{tickover:*")
    status, shown, _ = print_acl("-f", str(file), "--set", "sources=b-retry")
    assert status == 0
    assert "b-dlq" in shown


def test_the_command_prints_commands_for_a_principal() -> None:
    status, shown, said = print_acl("--principal", "User:x", "--set", "kafka.bootstrap_servers=k:9093")
    assert status == 0
    assert "no policies are given" in said
    *kafka, redis = shown.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server k:9093 --add ") for line in kafka)
    assert " | redis-cli -x ACL SETUSER tickover reset on " in redis
    assert "admin.properties" not in said


def test_printed_commands_carry_a_login_where_the_brokers_want_one() -> None:
    brokers = ("--set", "kafka.bootstrap_servers=k:9093", "--set", "kafka.client.security.protocol=SSL")
    status, shown, said = print_acl("--principal", "User:x", *brokers)
    assert status == 0
    head = "kafka-acls.sh --bootstrap-server k:9093 --command-config admin.properties --add "
    assert all(line.startswith(head) for line in shown.splitlines()[:-1])
    assert "admin.properties has the login of somebody who may do this:\nsecurity.protocol=SSL" in said


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert print_acl("-f", str(tmp_path / "absent"))[0] == 2
    assert print_acl("--topics", str(tmp_path / "absent"))[0] == 2
