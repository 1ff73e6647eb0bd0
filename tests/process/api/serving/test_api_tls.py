"""The API by https: its certificate, and what happens when that changes while requests come."""

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from api.access.auth import AccessConfigError
from api.serving.certificate import Certificate
from api.serving.connection import Deadlines
from api.serving.server import Server
from api.serving.sockets import Listening, listening_of
from sidecar.cli.app import app
from sidecar.service.housekeeping import Housekeeping, Interval
from sidecar.service.watched_files import WatchedFiles
from sidecar.settings.api import ApiSettings
from tests.services.certificates import Authority, Identity
from tests.unit.api_world import world

pytestmark = pytest.mark.slow

ANSWER_S = 60.0
LOOK_S = 0.05


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Identity:
    """A certificate where the API reads it."""
    place = Identity(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "tls.pem")
    replace(place, authority.identity("first"))
    return place


def replace(place: Identity, identity: Identity) -> None:
    shutil.copyfile(identity.certificate, place.certificate)
    shutil.copyfile(identity.key, place.key)


@contextmanager
def serving(files: Identity, **options: Any) -> Iterator[Server]:
    certificate = Certificate(str(files.certificate), str(files.key))
    watched = WatchedFiles({"certificate": certificate.file}, lambda *_: None)
    look = Housekeeping({"certificate": Interval(partial(watched.look, "certificate"), LOOK_S)})
    with world() as api:
        server = Server(api.app, "127.0.0.1", 0, Listening(certificate=certificate, **options))
        server.start()
        look.start()
        try:
            yield server
        finally:
            look.stop()
            server.stop()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def shown(port: int, authority: Authority) -> str:
    """The name in the certificate that the API shows."""
    with (
        socket.create_connection(("127.0.0.1", port), ANSWER_S) as plain,
        trusting(authority).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        certificate = client.getpeercert()
    assert certificate is not None
    subject: Any = certificate["subject"]
    return str(dict(part[0] for part in subject)["commonName"])


def test_requests_go_by_https_and_probes_by_http(files: Identity, authority: Authority) -> None:
    with serving(files, probe_port=0) as server:
        with httpx.Client(verify=trusting(authority), timeout=ANSWER_S) as client:
            for origin in ({}, {"origin": f"https://127.0.0.1:{server.port}"}):
                answer = client.get(f"https://127.0.0.1:{server.port}/v1/stats", headers=origin)
                assert answer.status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/livez", timeout=ANSWER_S)
        assert httpx.get(f"http://127.0.0.1:{server.probe_port}/livez", timeout=ANSWER_S).status_code == 200


def test_a_new_certificate_is_shown_and_no_request_fails(files: Identity, authority: Authority) -> None:
    done = threading.Event()
    statuses: list[int] = []

    def ask(port: int) -> None:
        with httpx.Client(verify=trusting(authority), timeout=ANSWER_S) as kept:
            while not done.is_set():
                statuses.append(kept.get(f"https://127.0.0.1:{port}/livez").status_code)
                new = httpx.get(f"https://127.0.0.1:{port}/livez", verify=trusting(authority), timeout=ANSWER_S)
                statuses.append(new.status_code)

    with serving(files) as server:
        assert shown(server.port, authority) == "first"
        asking = threading.Thread(target=ask, args=(server.port,))
        asking.start()
        try:
            for name in ("second", "third"):
                replace(files, authority.identity(name))
                while shown(server.port, authority) != name:
                    assert asking.is_alive()
        finally:
            done.set()
            asking.join()
    assert statuses
    assert set(statuses) == {200}


def test_with_files_that_can_t_be_used_the_last_certificate_goes_on(
    files: Identity, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = Certificate(str(files.certificate), str(files.key))
    before = certificate.context
    assert before.minimum_version == ssl.TLSVersion.TLSv1_2
    key = authority.identity("other").key.read_text()
    for change in (lambda: files.key.write_text(key), files.key.unlink, lambda: files.certificate.write_text("geheim")):
        caplog.clear()
        change()
        assert certificate.file.look() is False
        assert "the certificate of the API can't be used: what it said before goes on" in caplog.text
        assert "api.tls" in caplog.records[-1].__dict__["error"]
        assert "geheim" not in caplog.text
    caplog.clear()
    replace(files, authority.identity("second"))
    assert certificate.file.look() is True
    assert certificate.context is before  # connections are made from one context, which takes the newest
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("wrong", ["no certificate", "no file", "another key", "a key with a password"])
def test_files_that_can_t_be_used_keep_the_api_from_starting(wrong: str, files: Identity, authority: Authority) -> None:
    match wrong:
        case "no certificate":
            files.certificate.write_text("geheim")
        case "no file":
            files.key.unlink()
        case "another key":
            shutil.copyfile(authority.identity("other").key, files.key)
        case _:
            replace(files, authority.identity("locked", password="geheim"))
    settings = ApiSettings.model_validate(
        {"tls": {"certificate_file": str(files.certificate), "key_file": str(files.key)}}
    )
    with pytest.raises(AccessConfigError, match=r"api\.tls") as raised:
        listening_of(settings)
    assert "geheim" not in str(raised.value)


def test_one_file_of_the_two_is_refused() -> None:
    for name in ("certificate_file", "key_file"):
        with pytest.raises(ValueError, match="must be set both, or neither"):
            ApiSettings.model_validate({"tls": {name: "x"}})


def test_who_never_ends_the_handshake_keeps_nobody_out(files: Identity, authority: Authority) -> None:
    deadlines = Deadlines(handshake_s=1_000.0)
    with serving(files, connections_per_address=4, deadlines=deadlines) as server, ExitStack() as strangers:
        silent = [strangers.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(8)]
        assert shown(server.port, authority) == "first"
        silent[0].settimeout(ANSWER_S)
        assert silent[0].recv(1) == b""


def test_a_handshake_has_a_deadline(files: Identity) -> None:
    with (
        serving(files, deadlines=Deadlines(handshake_s=0.2)) as server,
        socket.create_connection(("127.0.0.1", server.port), ANSWER_S) as client,
    ):
        assert client.recv(1) == b""


def test_commands_go_by_https_too(files: Identity, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(files) as server:
        arguments = ["policies", "list", "--url", f"https://127.0.0.1:{server.port}"]
        untrusted = CliRunner().invoke(app, arguments)
        assert (untrusted.exit_code, "TICKOVER_CA_FILE" in untrusted.stderr) == (1, True)
        monkeypatch.setenv("TICKOVER_CA_FILE", str(authority.certificate))
        assert CliRunner().invoke(app, arguments).exit_code == 0
        monkeypatch.setenv("TICKOVER_CA_FILE", str(files.key))
        assert CliRunner().invoke(app, arguments).exit_code == 2
        monkeypatch.setenv("TICKOVER_CA_FILE", str(authority.certificate))
        monkeypatch.setenv("TICKOVER_API__PORT", str(server.port))
        monkeypatch.setenv("TICKOVER_API__TLS__CERTIFICATE_FILE", str(files.certificate))
        monkeypatch.setenv("TICKOVER_API__TLS__KEY_FILE", str(files.key))
        assert CliRunner().invoke(app, arguments[:2]).exit_code == 0
