"""Globs match what fnmatch says, and neither time nor memory grows beyond the text and the globs."""

import fnmatch
import re
import time
import tracemalloc
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.glob import compile_globs, is_exact
from tests.examples import examples

SIGNS = "ab-!]^[\\*?~|&\n.Z"
GLOBS = st.text(SIGNS, max_size=12) | st.lists(
    st.sampled_from(["*", "?", "a", "b", "ab", "[a-b]", "[!a]", "[]a]", "[b-a]", "[a-", "[!b-a!-z]", "[--a]", "é"]),
    max_size=8,
).map("".join)
TEXTS = st.text(SIGNS + "éz", max_size=12)


def by_fnmatch(globs: list[str], text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets in sets: fnmatch means them as text
        return any(re.match(fnmatch.translate(glob), text) for glob in globs)


def matches(globs: list[str], text: str) -> bool:
    matcher = compile_globs(globs)
    return matcher is not None and matcher.matches(text)


@settings(max_examples=examples(1_000), deadline=None)
@given(st.lists(GLOBS, max_size=4), st.lists(TEXTS, max_size=6))
@example(["[!]", "[]", "[!]]"], ["[!]", "[]", "]", "a"])
@example(["[b-a!-z]"], ["-", "z", "a", "!"])
@example(["*?a*", "*[ab]?*b", "?*"], ["xa", "a", "aab", "", "ba"])
@example([""], ["", "a"])
def test_a_matcher_says_what_fnmatch_says(globs: list[str], texts: list[str]) -> None:
    for text in [*texts, *globs]:
        assert matches(globs, text) == by_fnmatch(globs, text), text


@settings(max_examples=examples(300), deadline=None)
@given(st.text(SIGNS, min_size=1, max_size=8), st.characters())
def test_a_set_means_the_characters_that_fnmatch_means(inside: str, character: str) -> None:
    for glob in (f"[{inside}]", f"[!{inside}]", f"*[{inside}]*"):
        assert matches([glob], character) == by_fnmatch([glob], character)


@given(GLOBS)
def test_an_exact_glob_matches_itself_only(glob: str) -> None:
    if is_exact(glob):
        assert matches([glob], glob)
        assert not matches([glob], glob + "a")


HOSTILE = {
    "stars": ["*a" * 512],
    "any": ["*" + "?a" * 511 + "*"],
    "sets": ["*" + "".join(f"[{chr(0x4E00 + 2 * n)}-{chr(0x4E01 + 2 * n)}]*" for n in range(170))],
    "one set": ["*[" + "".join(chr(0x4E00 + 2 * n) for n in range(1_000)) + "]a*"],
    "many short": [f"*?{chr(0x4E00 + n)}*" for n in range(1_000)],
    "many places": [f"*{chr(0x4E00 + n)}*" for n in range(1_000)],
    "open brackets": ["*" + "[" * 1_000],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_globs_cost_little_time_and_memory(name: str) -> None:
    globs = HOSTILE[name]
    texts = ["a" * 4_096, "".join(chr(0x4E00 + n % 2_000) for n in range(4_096))]
    began_s = time.thread_time()
    matcher = compile_globs(globs)
    assert matcher is not None
    for text in texts:
        matcher.matches(text)
    assert time.thread_time() - began_s < 0.5
    tracemalloc.start()
    compile_globs(globs)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4_000_000


def test_nothing_is_kept_of_globs_that_were_matched() -> None:
    """A policy that is explained is gone with its request: the cache of regular expressions belongs to the process."""

    def kept(number: int) -> int:
        compile_globs(f"*{number}-{glob}?x*" for glob in range(1_000))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    first_bytes, *_, last_bytes = [kept(number) for number in range(5)]
    tracemalloc.stop()
    assert last_bytes - first_bytes < 10_000
