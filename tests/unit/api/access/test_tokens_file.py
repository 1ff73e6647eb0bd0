"""The tokens file as people write it: what the commands change in it, and what they leave."""

import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.access.auth import AccessConfigError, Role, load_tokens, new_token, parse_tokens
from api.access.tokens_file import NewEntry, TokenExists, UnknownToken, rewrite, with_token, without_token

WHERE = "tokens file t.yaml"


def digest(name: str) -> str:
    return "sha256:" + (name.encode().hex() * 64)[:64]


def line(name: str) -> str:
    return f'{{name: {name}, role: read, hash: "{digest(name)}"}}'


def names(text: str) -> list[str]:
    return [token.caller.name for token in parse_tokens(text, WHERE)]


def entry(name: str, role: Role = Role.WRITE, expires: str = "") -> NewEntry:
    return NewEntry(name, role, digest(name), expires)


BLOCK = f"""\
# who may call
---
- {line("ab")}  # of the build
# the night shift
-   name: cd
    role: write # not admin
    hash: >-
      {digest("cd")}

-
  hash: "{digest("ef")}"
  name: ef   # with - a dash
  role: admin
# the end
"""
FLOW = f"[{line('ab')}, {line('cd')} ,\n {line('ef')}]\n"
JSON = "[\n  " + ",\n  ".join(line(name).replace("name:", '"name":') for name in ("ab", "cd", "ef")) + "\n]"
CRLF = BLOCK.replace("\n", "\r\n")
FORMS = {
    "block": BLOCK,
    "flow": FLOW,
    "json": JSON,
    "crlf": CRLF,
    "no end": BLOCK.rstrip("\n").removesuffix("# the end"),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_an_entry_comes_after_the_others(text: str) -> None:
    changed = with_token(text, entry("new", expires="2027-01-31T00:00:00Z"), WHERE)
    assert names(changed) == ["ab", "cd", "ef", "new"]
    added = parse_tokens(changed, WHERE)[-1]
    assert (added.caller.role, added.digest.hex()) == (Role.WRITE, digest("new").removeprefix("sha256:"))
    assert added.expires_s == 1_801_353_600
    kept = iter(changed)
    assert all(char in kept for char in text), "every character is left, in order"


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["ab", "cd", "ef"])
def test_an_entry_leaves_alone(text: str, name: str) -> None:
    changed = without_token(text, name, WHERE)
    assert names(changed) == [other for other in ("ab", "cd", "ef") if other != name]
    assert digest(name) not in changed
    kept = iter(text)
    assert all(char in kept for char in changed), "nothing is new"
    for comment in ("# who may call", "# the night shift", "# the end"):
        assert (comment in changed) == (comment in text)


def test_what_comes_and_goes_leaves_the_text_as_it_was() -> None:
    for text in FORMS.values():
        came = with_token(text, entry("new"), WHERE)
        assert without_token(came, "new", WHERE).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("text", ["", "\n", "# nobody yet", "---\n# nobody\n"])
def test_a_file_begins(text: str) -> None:
    changed = with_token(text, entry("new"), WHERE)
    assert names(changed) == ["new"]
    assert changed.startswith(text)


@pytest.mark.parametrize("name", ["yes", "1", "a: b", "- x", "#x", "'", '"', "é", "it's", "{", "null", "2027-01-31"])
def test_any_name_is_read_back(name: str) -> None:
    for text in FORMS.values():
        assert names(with_token(text, entry(name), WHERE))[-1] == name


def test_what_is_wrong_is_refused_and_says_no_hash() -> None:
    shared = f"- &a {line('ab')}\n- {{<<: *a, name: cd, hash: '{digest('cd')}'}}\n"
    slips = [
        (TokenExists, lambda: with_token(BLOCK, entry("cd"), WHERE), "revoke it first"),
        (AccessConfigError, lambda: with_token(BLOCK, entry("oidc:x"), WHERE), "provider"),
        (AccessConfigError, lambda: with_token(BLOCK, entry(""), WHERE), "1 to 100"),
        (AccessConfigError, lambda: with_token(BLOCK, entry("x", expires="tomorrow"), WHERE), "ISO 8601"),
        (AccessConfigError, lambda: with_token("a: 1\n", entry("x"), WHERE), "must be a list"),
        (AccessConfigError, lambda: with_token("{", entry("x"), WHERE), "not YAML"),
        (AccessConfigError, lambda: with_token(f"{BLOCK}...\n---\n", entry("x"), WHERE), "not YAML"),
        (UnknownToken, lambda: without_token(BLOCK, "x", WHERE), "no token of the name x"),
        (AccessConfigError, lambda: without_token(f"- {line('ab')}\n", "ab", WHERE), "last token"),
        (AccessConfigError, lambda: without_token(shared, "ab", WHERE), "by hand"),  # the other one refers to it
        (AccessConfigError, lambda: without_token(f"[{line('ab')}, # a, b\n{line('cd')}]", "ab", WHERE), "by hand"),
    ]
    for kind, slip, says in slips:
        with pytest.raises(kind, match=says) as caught:
            slip()
        assert "sha256:6" not in str(caught.value)


@given(
    st.lists(st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=9), max_size=6, unique=True)
)
def test_any_course_of_changes_agrees_with_a_list(given_names: list[str]) -> None:
    wanted = ["ab", "cd", "ef"]
    text = BLOCK
    for name in given_names:
        if name in wanted or name.startswith("oidc:"):
            continue
        text, wanted = with_token(text, NewEntry(name, Role.READ, new_token()[1]), WHERE), [*wanted, name]
        gone = wanted[len(name) % len(wanted)]
        text, wanted = without_token(text, gone, WHERE), [other for other in wanted if other != gone]
        assert names(text) == wanted


# --- the file itself ----------------------------------------------------------------------------------------------


def files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_users_alone_and_a_former_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    rewrite(path, lambda text: with_token(text, entry("one"), WHERE))
    assert mode(path) == 0o600
    path.chmod(0o640)
    rewrite(path, lambda text: with_token(text, entry("two"), WHERE))
    assert mode(path) == 0o640
    assert names(path.read_text()) == ["one", "two"]
    assert files(tmp_path) == ["tokens.yaml"]


def test_a_link_stays_one_and_ends_of_lines_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "tokens.yaml"
    real.write_bytes(CRLF.encode())
    link.symlink_to(real)
    rewrite(link, lambda text: without_token(text, "cd", WHERE))
    assert link.is_symlink()
    assert real.read_bytes().count(b"\r\n") == real.read_bytes().count(b"\n") > 0


def test_what_is_refused_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(BLOCK)
    before = path.stat()
    with pytest.raises(UnknownToken):
        rewrite(path, lambda text: without_token(text, "x", WHERE))
    assert (path.stat().st_ino, path.read_text(), files(tmp_path)) == (before.st_ino, BLOCK, ["tokens.yaml"])


def test_of_changes_at_once_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    start = threading.Barrier(8)

    def add(n: int) -> None:
        start.wait()
        rewrite(path, lambda text: with_token(text, entry(f"n{n}"), WHERE))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(path.read_text())) == [f"n{n}" for n in range(8)]


def test_a_new_token_is_let_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    token, hash_of_it = new_token()
    rewrite(path, lambda text: with_token(text, NewEntry("night", Role.READ, hash_of_it), WHERE))
    caller = load_tokens(path).caller(token)
    assert caller is not None
    assert (caller.name, caller.role) == ("night", Role.READ)
