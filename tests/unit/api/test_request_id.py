"""The name of a request: in its answer, and in all that the request leaves behind."""

import io
import json
import logging

import pytest

from api.answer_headers import current_request_id
from api.dependencies import Prober
from sidecar.service.logs import configure_logs
from sidecar.settings.settings import LogSettings
from tests.unit.api_world import REMINDERS, problem, world

GIVEN = {"x-request-id": "gateway:7f3a/1"}


def test_it_is_taken_from_the_request() -> None:
    with world() as api:
        assert api.call("GET", "/livez", headers=GIVEN).headers["x-request-id"] == "gateway:7f3a/1"
        assert api.call("HEAD", "/livez", headers=GIVEN).headers["x-request-id"] == "gateway:7f3a/1"


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "a\tb", "<script>", 'a"b', "a,b", "\xe4"])
def test_one_that_is_not_sane_is_replaced(given: str) -> None:
    with world() as api:
        one, other = (
            api.call("GET", "/livez", headers=[("x-request-id", given.encode("latin-1"))]).headers["x-request-id"]
            for _ in range(2)
        )
        assert one != other
        assert len(one) == len(other) == 16


def test_two_names_are_none() -> None:
    with world() as api:
        response = api.call("GET", "/livez", headers=[("x-request-id", "a"), ("x-request-id", "b")])
        assert len(response.headers["x-request-id"]) == 16


def test_a_problem_has_it_wherever_it_is_found() -> None:
    with world() as api:
        for method, path, status, type in (
            ("GET", "/nothing", 404, "not-found"),
            ("PUT", "/livez", 405, "method-not-allowed"),
            ("GET", "/v1/policies/x", 404, "policy-not-found"),
            ("GET", "/v1/policies?limit=x", 422, "invalid-parameter"),
        ):
            response = api.call(method, path, headers=GIVEN)
            assert problem(response, status, type)["request_id"] == response.headers["x-request-id"] == "gateway:7f3a/1"
        named = api.call("GET", "/nothing")
        assert named.json()["request_id"] == named.headers["x-request-id"]
        response = api.send_raw("POST", "/v1/messages", b" " * (1 << 21), **GIVEN)
        assert problem(response, 413, "body-too-large")["request_id"] == "gateway:7f3a/1"


@pytest.mark.usefixtures("logging_as_before")
def test_log_lines_of_a_request_have_it_and_others_do_not() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(), stream)

    def broken() -> None:
        raise ValueError("hunter2")

    with world() as api:
        api.app.add_api_route("/broken", broken, dependencies=[Prober])
        failed = api.call("GET", "/broken", headers=GIVEN)
        assert problem(failed, 500, "internal-error")["request_id"] == "gateway:7f3a/1"
        logging.getLogger("tickover.api").warning("between requests")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line.get("request_id"), line["message"].split()[0]) for line in lines] == [
        ("gateway:7f3a/1", "request"),
        (None, "between"),
    ]
    assert current_request_id() == ""


def test_the_audit_record_of_a_refusal_has_it() -> None:
    with world() as api:
        response = api.call("DELETE", "/v1/policies/x", headers={"if-match": "*"})
        assert [record["request_id"] for record in api.audited] == [response.headers["x-request-id"]]
        api.call("PUT", "/v1/policies/reminders", json=REMINDERS, headers={**GIVEN, "if-none-match": "*"})
        assert api.audited[-1]["request_id"] == "gateway:7f3a/1"
