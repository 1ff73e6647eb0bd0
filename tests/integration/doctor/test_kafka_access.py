"""The sidecar on a Kafka with access control: it comes with the printed rights and no others."""

import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from policies.table import EMPTY_TABLE
from policies.topic.topic import ensure_topic
from sidecar.doctor.acl import Operation, Right, literal
from sidecar.doctor.doctor import examine
from sidecar.doctor.facts import Finding, Severity
from sidecar.kafka.topics import ensure_own_topics
from sidecar.settings.settings import load_settings
from tests.services.certificates import Authority
from tests.services.fixtures import own_broker, own_tools
from tests.services.guarded import PASSWORD, REDIS_PASSWORD, USER, Guarded, scram, secret
from tests.services.java_tools import JavaTools
from tests.services.secure_kafka import SecureKafka, SecureServer, TokenServer
from tests.services.secure_redis import SecureRedis
from tests.services.sidecar_process import START_S
from tests.services.site import Site, headers_of
from tests.services.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

SECRET, KEY_PASSWORD = "secret-9c4", "key-password-3e8"
CERTIFICATE, SERVICE = "User:CN=sidecar,O=tickover tests", "User:service"
TOLD = ("topic", "group")  # Kafka doesn't say who may use which transactional ids


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    made = TokenServer(SECRET)
    made.server.start()
    yield made
    made.server.stop()


@pytest.fixture(scope="module")
def server(
    authority: Authority, tokens: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureServer]:
    with own_broker(SecureServer(tmp_path_factory.mktemp("secure"), authority, tokens)) as server:
        yield server


@pytest.fixture(scope="module")
def secure(server: SecureServer) -> SecureKafka:
    kafka = SecureKafka(server)
    kafka.add_user(USER, PASSWORD)
    return kafka


@pytest.fixture(scope="module")
def kafka_tools(secure: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    """Kafka's own commands, as the super user."""
    return own_tools(secure, tmp_path_factory.mktemp("java"))


@pytest.fixture
def by_password(
    secure: SecureKafka, server: SecureServer, authority: Authority, redis_url: str, tmp_path: Path
) -> Iterator[Guarded]:
    with closing(Site(secure, redis_url, tmp_path)) as site:
        yield Guarded(site, secure, f"User:{USER}", scram(server, authority, tmp_path))


def test_messages_go_their_ways_with_the_printed_rights_alone(by_password: Guarded, each_guarantee: str) -> None:
    site = by_password.site
    sidecar = by_password.sidecar("one", GUARANTEE=each_guarantee).start()
    by_password.send(b"10ms", b"soon")
    by_password.send(b"1h", b"later")
    site.send(site.name("in"), [("tickover-delay", b"never")])
    site.send(site.name("orders-retry"))
    [again] = site.kafka.read(site.name("orders"), 1)
    site.send(site.name("orders-retry"), headers_of(again))
    assert dict(headers_of(site.kafka.read(site.name("orders-dlq"), 1)[0]))["tickover-reason"] == b"attempts_exhausted"
    assert dict(headers_of(site.kafka.read(site.quarantine, 1)[0]))["tickover-reason"] == b"bad_header"
    assert by_password.emitted(1) == [b"soon"]
    assert sidecar.stop() == 0
    sidecar = by_password.sidecar("one", GUARANTEE=each_guarantee).start()
    wait_until(lambda: sidecar.call("POST", "/v1/messages/later/fire").is_success, otherwise=sidecar.last_words)
    assert by_password.emitted(2) == [b"later", b"soon"]
    assert sidecar.stop() == 0
    said = sidecar.log.read_text()
    assert "uthorization" not in said
    assert PASSWORD not in said
    assert by_password.refused_by_redis() == set()


@pytest.mark.usefixtures("patient_doctor")
def test_operators_need_no_other_rights_and_each_of_them_is_used(by_password: Guarded, server: SecureServer) -> None:
    site = by_password.site
    sidecar = by_password.sidecar("one", REDRIVE__WATCH="0ms").start()

    def job(kind: str, **body: Any) -> None:
        """Plan, run, and wait for the end."""
        plan = sidecar.call("POST", f"/v1/{kind}", json=body)
        assert plan.status_code == 202, plan.text
        path = f"/v1/{kind}/{plan.json()['id']}"
        wait_until(lambda: sidecar.call("GET", path).json()["state"] == "planned", otherwise=sidecar.last_words)
        token = sidecar.call("GET", path).json().get("token")
        assert sidecar.call("POST", f"{path}/run", json={"token": token} if token else None).is_success
        wait_until(lambda: sidecar.call("GET", path).json()["state"] == "done", otherwise=sidecar.last_words)

    message = {"source": site.name("in"), "target": site.name("out-a"), "value": "x", "delay": "1h"}
    for id in ("cancelled", "fired"):
        headers = {"Idempotency-Key": id}
        assert sidecar.call("POST", "/v1/messages", json={**message, "id": id}, headers=headers).status_code == 202
    # 404 until it is held, 202 where the receipt takes its time; then 409, because it is cancelled.
    wait_until(lambda: sidecar.call("DELETE", "/v1/messages/cancelled").status_code in (200, 409))
    wait_until(site.is_in_redis, otherwise=sidecar.last_words)
    site.wipe_redis()
    by_password.send(b"1h", b"next")  # what is put there next meets the loss
    wait_until(lambda: sidecar.stats()["rebuild"]["finished"] > 0, otherwise=sidecar.last_words)
    job("changes", action="fire", filter={"topic": site.name("in")})
    assert len(by_password.emitted(1)) == 1
    site.send(site.name("in"), [("tickover-delay", b"never")])
    site.kafka.read(site.quarantine, 1)
    site.send(site.name("orders-retry"), [("tickover-attempt", b"2")])
    site.kafka.read(site.name("orders-dlq"), 1)
    for topic in (site.quarantine, site.name("orders-dlq")):
        shows = partial(sidecar.call, "GET", f"/v1/dead-letters?topic={topic}")
        wait_until(lambda shows=shows: bool(shows().json().get("items")))  # type: ignore[misc]
    job("redrives", topic=site.quarantine, confirm_all=True)
    site.kafka.read(site.quarantine, 2)
    schedule = {"cron": "* * * * * *", "source": site.name("in"), "target": site.name("out-a")}
    made = sidecar.call("PUT", "/v1/schedules/tick", json=schedule, headers={"If-None-Match": "*"})
    assert made.status_code == 201, made.text
    by_password.emitted(4)
    assert sidecar.call("PUT", "/v1/pauses/schedule/tick", json={"reason": "enough"}).status_code == 200
    wait_until(lambda: bool(sidecar.call("GET", "/v1/audit").json().get("items")), otherwise=sidecar.last_words)
    assert errors(examine(by_password.settings())) == []
    assert sidecar.stop() == 0
    assert "uthorization" not in sidecar.log.read_text()
    assert by_password.refused_by_redis() == set()
    used = server.used(by_password.principal)
    places: dict[tuple[str, str], bool] = {}
    for right in by_password.rights:
        name = right.role if right.resource == "topic" else right.pattern.name  # one of several sources will do
        for operation in right.operations:
            places[name, operation] = places.get((name, operation), False) or is_used(right, operation, used)
    assert [place for place, was_used in places.items() if not was_used] == []


def errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def is_used(right: Right, operation: str, used: set[tuple[str, str, str]]) -> bool:
    """Whether Kafka was asked for something that this right allows."""
    kind = {"topic": "Topic", "group": "Group", "transactional-id": "TransactionalId"}[right.resource]
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
    return any((resource, did) == (kind, word) and right.pattern.covers(literal(name)) for resource, name, did in used)


@pytest.mark.usefixtures("patient_doctor")
def test_each_missing_right_is_named_with_the_command_that_gives_it(
    by_password: Guarded, secure: SecureKafka, kafka_tools: JavaTools, tmp_path: Path
) -> None:
    settings, rights = by_password.settings(), [right for right in by_password.rights if right.resource in TOLD]

    def named(*operations: Operation) -> list[Right]:
        """Every right with any of these operations, cut to them."""
        cut = [(right, tuple(one for one in right.operations if one in operations)) for right in rights]
        return [right._replace(operations=some) for right, some in cut if some]

    def assert_named(missing: list[Right]) -> None:
        secure.forbid(by_password.principal, missing)
        wait_until(lambda: by_password.lacking() == missing, otherwise=lambda: f"{by_password.lacking()} != {missing}")
        secure.allow(by_password.principal, missing)
        wait_until(lambda: by_password.lacking() == [], otherwise=lambda: str(by_password.lacking()))

    assert_named(named("Create"))
    ensure_topic({"bootstrap.servers": secure.bootstrap}, settings.policies.topic, -1, 30.0)
    ensure_own_topics(secure.admin, settings, EMPTY_TABLE)
    for operation in ("Read", "Write", "Describe"):
        assert_named(named(operation))
    secure.forbid(by_password.principal, by_password.rights)
    wait_until(lambda: len(by_password.lacking()) == len(rights))
    findings = examine(settings)
    found = {finding.what: finding for finding in findings if finding.part == "rights"}
    assert len(found) == len(rights)
    assert all(finding.severity is Severity.ERROR for finding in found.values())
    fix = shlex.split(found[f"no Write on topic {by_password.site.name('orders')} (target)"].fix)
    head = ["kafka-acls.sh", "--bootstrap-server", settings.kafka.bootstrap_servers]
    assert fix[:5] == [*head, "--command-config", "admin.properties"]
    kafka_tools.run("AclCommand", *fix[5:])
    [note] = [finding.what for finding in findings if finding.part == "commands"]
    login = tmp_path / "admin.properties"
    login.write_text("\n".join(note.splitlines()[1:]).replace("ADMIN", USER).replace("PASSWORD", PASSWORD))
    JavaTools(settings.kafka.bootstrap_servers, tmp_path).run("TopicCommand", "--command-config", str(login), "--list")
    wait_until(lambda: len(by_password.lacking()) == len(rights) - 1, otherwise=lambda: str(by_password.lacking()))


@pytest.mark.parametrize("when", ["at its start", "later"])
def test_without_the_right_to_write_to_its_ledger_it_ends_and_says_so_and_blames_no_record(
    by_password: Guarded, secure: SecureKafka, each_guarantee: str, when: str
) -> None:
    site, sidecar = by_password.site, by_password.sidecar("one", GUARANTEE=each_guarantee)
    ledger = [right._replace(operations=("Write",)) for right in by_password.rights if right.role == "ledger"]
    ensure_own_topics(secure.admin, by_password.settings(), EMPTY_TABLE)
    if when == "later":
        sidecar.start()
        by_password.send(b"10ms", b"first")
        by_password.emitted(1)
    secure.forbid(by_password.principal, ledger)
    by_password.send(b"10ms", b"second")
    if when != "later":
        sidecar.launch()
    assert sidecar.wait_until_ended(START_S) == 1
    assert re.search("LedgerError: .*ledger", sidecar.messages("critical")[-1]["error"])
    told = {message["finding"]: message["fix"] for message in sidecar.messages("error") if "finding" in message}
    [(finding, fix)] = told.items()
    assert finding == f"no Write on topic {by_password.settings().ledger_topic} (ledger)"
    assert fix.startswith("kafka-acls.sh --bootstrap-server")
    secure.allow(by_password.principal, ledger)
    sidecar.start()

    def arrived() -> list[bytes | None]:
        return [message.value() for message in site.kafka.read_all(site.name("out-a"))]

    wait_until(lambda: b"second" in arrived(), otherwise=sidecar.last_words)
    assert sidecar.stop() == 0
    assert each_guarantee == "at_least_once" or arrived().count(b"second") == 1
    assert site.kafka.read_all(site.quarantine) == []


def test_without_the_right_to_read_a_source_it_ends_and_says_so(
    by_password: Guarded, secure: SecureKafka, each_guarantee: str
) -> None:
    sidecar = by_password.sidecar("one", GUARANTEE=each_guarantee).start()
    source = [right for right in by_password.rights if right.pattern.name == by_password.site.name("in")]
    by_password.send(b"10s", b"held")
    wait_until(
        lambda: any(topic["accepted"] for topic in sidecar.stats()["topics"].values()), otherwise=sidecar.last_words
    )
    secure.forbid(by_password.principal, source)
    assert sidecar.wait_until_ended(START_S) == 1
    assert "no right to read a source" in sidecar.messages("critical")[-1]["error"]
    secure.allow(by_password.principal, source)
    sidecar.start()
    assert by_password.emitted(1) == [b"held"]
    assert sidecar.stop() == 0
    assert by_password.site.kafka.read_all(by_password.site.quarantine) == []


def test_a_right_to_read_that_is_away_for_a_moment_ends_nobody(
    by_password: Guarded, secure: SecureKafka, each_guarantee: str
) -> None:
    sidecar = by_password.sidecar("one", GUARANTEE=each_guarantee).start()
    source = [right for right in by_password.rights if right.pattern.name == by_password.site.name("in")]
    by_password.send(b"3s", b"held")
    wait_until(
        lambda: any(topic["accepted"] for topic in sidecar.stats()["topics"].values()), otherwise=sidecar.last_words
    )
    secure.forbid(by_password.principal, source)
    told = "no right to read a source: asking again"
    wait_until(lambda: told in {line["message"] for line in sidecar.messages("warning")}, otherwise=sidecar.last_words)
    secure.allow(by_password.principal, source)
    by_password.send(b"10ms", b"later")
    assert sorted(by_password.emitted(2)) == [b"held", b"later"]
    wait_until(
        lambda: "a source may be read again" in {line["message"] for line in sidecar.messages("info")},
        otherwise=sidecar.last_words,
    )
    assert sidecar.stop() == 0
    assert by_password.site.kafka.read_all(by_password.site.quarantine) == []


def test_what_the_quarantine_refuses_waits_and_holds_up_nothing_else(
    by_password: Guarded, secure: SecureKafka, each_guarantee: str
) -> None:
    site, sidecar = by_password.site, by_password.sidecar("one", GUARANTEE=each_guarantee).start()
    right = [right._replace(operations=("Write",)) for right in by_password.rights if right.role == "quarantine"]
    secure.forbid(by_password.principal, right)
    site.send(site.name("in"), [("tickover-delay", b"never")])

    def told() -> bool:
        return any(site.quarantine in problem for problem in sidecar.stats()["problems"])

    wait_until(told, otherwise=sidecar.last_words)
    by_password.send(b"10ms", b"fine")
    assert by_password.emitted(1) == [b"fine"]
    secure.allow(by_password.principal, right)
    site.kafka.read(site.quarantine, 1)
    wait_until(lambda: not told(), otherwise=sidecar.last_words)
    assert sidecar.stop() == 0
    assert len(site.kafka.read_all(site.quarantine)) == 1


def test_without_its_transactional_ids_it_ends_and_says_so(by_password: Guarded, secure: SecureKafka) -> None:
    secure.forbid(by_password.principal, [right for right in by_password.rights if right.role == "engine"])
    sidecar = by_password.sidecar("one")
    sidecar.launch()
    assert sidecar.wait_until_ended(START_S) == 1
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in sidecar.messages("critical")[-1]["error"]


@pytest.fixture(scope="module")
def secure_redis(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRedis]:
    redis = SecureRedis(tmp_path_factory.mktemp("redis"), authority)
    redis.server.start()
    yield redis
    redis.server.stop()


def certificate(server: SecureServer, authority: Authority, directory: Path) -> dict[str, str]:
    """Settings of who comes by a certificate whose key is encrypted."""
    own = authority.identity("sidecar", KEY_PASSWORD)
    return {
        "KAFKA__BOOTSTRAP_SERVERS": server.mtls,
        "KAFKA__CLIENT__SECURITY_PROTOCOL": "SSL",
        "KAFKA__CLIENT__SSL_CERTIFICATE_LOCATION": str(own.certificate),
        "KAFKA__CLIENT__SSL_KEY_LOCATION": str(own.key),
        "KAFKA__CLIENT__SSL_KEY_PASSWORD_FILE": secret(directory, "key-password", KEY_PASSWORD),
        "KAFKA__CLIENT__SSL_CA_LOCATION": str(authority.certificate),
    }


def token(server: SecureServer, authority: Authority, directory: Path, tokens: TokenServer) -> dict[str, str]:
    """Settings of who gets a token for its secret."""
    return {
        "KAFKA__BOOTSTRAP_SERVERS": server.oauth,
        "KAFKA__CLIENT__SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA__CLIENT__SASL_MECHANISM": "OAUTHBEARER",
        "KAFKA__CLIENT__SASL_OAUTHBEARER_METHOD": "oidc",
        "KAFKA__CLIENT__SASL_OAUTHBEARER_CLIENT_ID": SERVICE.removeprefix("User:"),
        "KAFKA__CLIENT__SASL_OAUTHBEARER_CLIENT_SECRET_FILE": secret(directory, "secret", SECRET),
        "KAFKA__CLIENT__SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": f"{tokens.url}/token",
        "KAFKA__CLIENT__SSL_CA_LOCATION": str(authority.certificate),
    }


def redis_by_tls(redis: SecureRedis, authority: Authority, directory: Path) -> dict[str, str]:
    own = authority.identity("guest", KEY_PASSWORD)
    return {
        "REDIS__URL": redis.url,
        "REDIS__CA_FILE": str(authority.certificate),
        "REDIS__CERTIFICATE_FILE": str(own.certificate),
        "REDIS__KEY_FILE": str(own.key),
        "REDIS__KEY_PASSWORD_FILE": secret(directory, "redis-key-password", KEY_PASSWORD),
    }


@pytest.mark.usefixtures("patient_doctor")
@pytest.mark.parametrize("principal", [CERTIFICATE, SERVICE], ids=["certificate", "token"])
# tidy: what a deployment has
def test_it_comes_by_certificate_or_token_and_shows_no_secret(
    principal: str, secure: SecureKafka, server: SecureServer, authority: Authority, tokens: TokenServer,
    secure_redis: SecureRedis, tmp_path: Path,
) -> None:  # fmt: skip
    logins = {
        CERTIFICATE: lambda: certificate(server, authority, tmp_path),
        SERVICE: lambda: token(server, authority, tmp_path, tokens),
    }
    login = logins[principal]() | redis_by_tls(secure_redis, authority, tmp_path)
    with closing(Site(secure, secure_redis.server.url, tmp_path)) as site:
        guarded = Guarded(site, secure, principal, login)
        sidecar = guarded.sidecar("one", LOG__LEVEL="debug", KAFKA__CLIENT__DEBUG="security").start()
        guarded.send(b"10ms", b"soon")
        guarded.send(b"3s", b"by Redis")
        assert guarded.emitted(2) == [b"by Redis", b"soon"]
        findings = examine(guarded.settings())
        assert errors(findings) == []
        assert sidecar.stop() == 0
        assert guarded.refused_by_redis() == set()
        said = f"{sidecar.log.read_text()} {findings} {guarded.settings()!r} {guarded.settings().model_dump_json()}"
        assert "security" in said
        assert shown_secrets(said, tokens) == []


def shown_secrets(said: str, tokens: TokenServer) -> list[str]:
    return [one for one in (PASSWORD, SECRET, KEY_PASSWORD, REDIS_PASSWORD, *tokens.signatures) if one in said]


def test_who_is_not_let_in_is_told_why_and_shown_no_secret(
    server: SecureServer, authority: Authority, tokens: TokenServer, secure_redis: SecureRedis, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger", "somebody else")
    wrong = {"ca": str(stranger.certificate), "secret": secret(tmp_path, "wrong", "wrong-secret-5b2")}
    password, by_token = scram(server, authority, tmp_path), token(server, authority, tmp_path, tokens)
    redis = redis_by_tls(secure_redis, authority, tmp_path) | {"REDIS__PASSWORD": REDIS_PASSWORD}
    cases: list[tuple[str, dict[str, str], str]] = [
        ("brokers", password | {"KAFKA__CLIENT__SASL_PASSWORD_FILE": wrong["secret"]}, "Authentication failed"),
        ("brokers", password | {"KAFKA__CLIENT__SSL_CA_LOCATION": wrong["ca"]}, "certificate verify failed"),
        ("brokers", by_token | {"KAFKA__CLIENT__SASL_OAUTHBEARER_CLIENT_SECRET_FILE": wrong["secret"]},
         "invalid_client"),
        ("brokers", password | {"KAFKA__BOOTSTRAP_SERVERS": server.mtls, "KAFKA__CLIENT__SECURITY_PROTOCOL": "SSL"},
         "bad certificate"),
        ("redis", redis | {"REDIS__CA_FILE": wrong["ca"]}, "certificate verify failed"),
        ("redis", {"REDIS__URL": secure_redis.url, "REDIS__CA_FILE": str(authority.certificate)},
         "certificate required"),
        ("redis", redis | {"REDIS__USERNAME": "nobody"}, "refuses the login"),
    ]  # fmt: skip

    def refusal(part: str, given: dict[str, str], words: str) -> Finding:
        """The doctor doesn't wait for long: what a busy machine kept from answering is asked again."""
        settings = load_settings(None, {}, {f"TICKOVER_{name}": value for name, value in given.items()})
        found: list[Finding] = []

        def is_told() -> bool:
            found[:] = [finding for finding in examine(settings) if finding.part == part]
            return any(words in finding.what for finding in found)

        wait_until(is_told, 2 * WAIT_S, lambda: f"no {words!r} in {found}")
        [error] = found
        return error

    with ThreadPoolExecutor(len(cases)) as executor:
        for error in executor.map(lambda case: refusal(*case), cases):
            assert error.severity is Severity.ERROR
            assert shown_secrets(f"{error}", tokens) == []
            assert "wrong-secret" not in str(error)


def test_the_password_of_kafka_changes_under_load_and_brokers_that_start_anew_are_met_with_it(
    by_password: Guarded, server: SecureServer, secure: SecureKafka, tmp_path: Path
) -> None:
    """Open connections go on; the brokers' restart makes every client log in again, with what the file says now."""
    sidecar = by_password.sidecar("one").start()
    file = Path(sidecar.settings["TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE"])
    sent: list[bytes] = []

    def send(count: int) -> None:
        for _ in range(count):
            sent.append(b"%04d" % len(sent))
            by_password.send(b"500ms", sent[-1])

    send(50)
    try:
        secure.add_user(USER, "another-password-4a7")
        file.write_text("another-password-4a7\n")
        send(50)
        wait_until(lambda: "the password of Kafka has changed" in sidecar.log.read_text(), otherwise=sidecar.last_words)
        server.kill()
        server.start()
        send(50)
        assert by_password.emitted(len(sent)) == sorted(sent)
        wait_until(sidecar.is_ready, WAIT_S, sidecar.last_words)
        # Asked of the brokers: clients say late who has refused them.
        told = server.log.stat().st_size
        send(50)
        assert by_password.emitted(len(sent)) == sorted(sent)
        assert b"Failed authentication" not in server.log.read_bytes()[told:], "some come with the former password"
        assert sidecar.call("GET", "/v1/messages").json()["items"] == []
        assert sidecar.stop() == 0
    finally:
        secure.add_user(USER, PASSWORD)
