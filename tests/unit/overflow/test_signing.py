"""Signed data counts where it was signed for, and nowhere else."""

from pathlib import Path

import pytest

from sidecar.lookup.exchange import Refused, opened, sealed
from sidecar.overflow.signing import (
    ANSWER,
    CHUNK,
    KEYS_MAX,
    QUESTION,
    UNSIGNED,
    Signing,
    SigningKeyError,
    read_signing_keys,
)

ONE, OTHER = b"1" * 32, b"2" * 32
PLACE, DATA = b"{g:gold:0}:a", b"data"


def test_a_signature_holds_for_its_kind_its_place_and_its_data_alone() -> None:
    signing = Signing((ONE,))
    signature = signing.signature(CHUNK, PLACE, DATA)
    assert signing.holds(CHUNK, PLACE, DATA, signature)
    for kind, place, data in (
        (ANSWER, PLACE, DATA), (CHUNK, b"{g:gold:1}:a", DATA), (CHUNK, PLACE, b"Data"),
        (CHUNK, PLACE + DATA[:1], DATA[1:]), (CHUNK, PLACE, DATA + b"\0"),
    ):  # fmt: skip
        assert not signing.holds(kind, place, data, signature)
    for other in (b"", signature[:-1], signature + b"\0", bytes(32)):
        assert not signing.holds(CHUNK, PLACE, DATA, other)
    assert not Signing((OTHER,)).holds(CHUNK, PLACE, DATA, signature)


def test_keys_change_one_after_the_other() -> None:
    before, between, after = Signing((ONE,)), Signing((ONE, OTHER)), Signing((OTHER, ONE))
    for writer in (before, between, after):
        for reader in (between, after):
            assert reader.holds(CHUNK, PLACE, DATA, writer.signature(CHUNK, PLACE, DATA))
    assert not before.holds(CHUNK, PLACE, DATA, after.signature(CHUNK, PLACE, DATA))


def test_a_file_has_a_key_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(ONE + b"\r\n\n  " + OTHER + b"\n")
    read = read_signing_keys(str(file))
    assert read.signature(CHUNK, PLACE, DATA) == Signing((ONE,)).signature(CHUNK, PLACE, DATA)
    assert read.holds(CHUNK, PLACE, DATA, Signing((OTHER,)).signature(CHUNK, PLACE, DATA))
    assert not read_signing_keys("").is_on


@pytest.mark.parametrize(
    "text", [b"", b"\n\n", b"short-secret", ONE + b"\nshort-secret", (ONE + b"\n") * (KEYS_MAX + 1)]
)
def test_a_file_without_good_keys_is_refused_and_not_shown(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "keys").write_bytes(text)
    with pytest.raises(SigningKeyError, match="signing_key_file") as refused:
        read_signing_keys(str(tmp_path / "keys"))
    assert "secret" not in str(refused.value)
    with pytest.raises(SigningKeyError, match="can't be read"):
        read_signing_keys(str(tmp_path / "none"))


def test_questions_and_answers_count_in_the_place_they_were_signed_for() -> None:
    signing = Signing((ONE,))
    data = sealed(signing, QUESTION, "channel", b"{}")
    assert opened(signing, QUESTION, "channel", data) == b"{}"
    for kind, place, said in (
        (ANSWER, "channel", data), (QUESTION, "other", data), (QUESTION, "channel", b"{}"), (QUESTION, "channel", b""),
        (QUESTION, "channel", data + b" "), (QUESTION, "channel", b"\xff" * 80), (QUESTION, "channel", b"0" * 80),
    ):  # fmt: skip
        with pytest.raises(Refused):
            opened(signing, kind, place, said)
    assert sealed(UNSIGNED, QUESTION, "channel", b"{}") == b"{}"
    assert opened(UNSIGNED, QUESTION, "channel", b"{}") == b"{}"
