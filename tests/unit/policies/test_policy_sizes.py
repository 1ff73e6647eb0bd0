"""Sizes as users write them, on the command line, in settings and in policies: bytes, and what is refused."""

import re

import pytest

from policies.errors import FormatError
from policies.fields import SIZE_MAX, SIZE_PATTERN, parse_size

READ = [
    ("0", 0),
    ("200", 200),
    ("200B", 200),
    ("2kB", 2_000),
    ("2KB", 2_000),
    ("2KiB", 2_048),
    ("2kib", 2_048),
    ("1MB", 10**6),
    ("1MiB", 1 << 20),
    ("3GB", 3 * 10**9),
    ("3 GiB", 3 << 30),
    ("1TB", 10**12),
    (" 1TiB ", 1 << 40),
    ("1.5MB", 1_500_000),
    ("0.5KiB", 512),
    ("0.1kB", 100),
    ("9007199254740991", SIZE_MAX),
]


@pytest.mark.parametrize(("text", "size"), READ)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert re.search(SIZE_PATTERN, text)


@pytest.mark.parametrize(("value", "size"), [(0, 0), (512, 512), (5e8, 500_000_000)])
def test_a_bare_number_is_bytes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("2k", "2kB is 2,000 bytes, 2KiB is 2,048"),
        ("512Mi", "needs its unit in full"),
        ("5iB", "needs its unit in full"),
        ("1.5", "a whole number of bytes"),
        ("1.0001kB", "a whole number of bytes"),
        (1.5, "a whole number of bytes"),
        ("", "not a size"),
        ("kB", "not a size"),
        ("-1", "not a size"),
        (-1, "not a size"),
        ("2,000", "not a size"),
        ("1MB2kB", "not a size"),
        ("\u0662kB", "not a size"),
        (True, "not a size"),
        (None, "not a size"),
        (float("nan"), "not a size"),
        (float("inf"), "not a size"),
        ("9007199254740992", "0 to 9007199254740991 bytes"),
        ("9999999999999999TiB", "0 to 9007199254740991 bytes"),
    ],
)
def test_anything_else_is_refused_in_words(value: object, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse_size(value)


def test_a_place_has_its_own_limits() -> None:
    assert [parse_size(text, 1_000, 2_000) for text in ("1kB", "2000")] == [1_000, 2_000]
    for text in ("999", "2KiB"):
        with pytest.raises(FormatError, match="a size here is 1000 to 2000 bytes"):
            parse_size(text, 1_000, 2_000)
