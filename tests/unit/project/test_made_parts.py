"""Parts of pages that are made from the code, between words that people write."""

from pathlib import Path

import pytest

from tests.pages.text import with_parts

PAGE = """\
Before.

<!-- one: made from a file by `make pages` -->
old
<!-- end of one -->
Between.
<!-- two: made from another -->
<!-- end of two -->
"""


def test_only_what_lies_between_the_marks_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    made = with_parts(tmp_path / "page.md", {"one": "| \\1 |\n", "two": "new"})
    assert made.splitlines() == [
        "Before.",
        "",
        "<!-- one: made from a file by `make pages` -->",
        "",
        "| \\1 |",
        "",
        "<!-- end of one -->",
        "Between.",
        "<!-- two: made from another -->",
        "",
        "new",
        "<!-- end of two -->",
    ]
    (tmp_path / "page.md").write_text(made)
    assert with_parts(tmp_path / "page.md", {"one": "| \\1 |\n", "two": "new"}) == made


@pytest.mark.parametrize("page", [PAGE * 2, PAGE.replace("<!-- end of one -->\n", ""), ""])
def test_a_page_without_its_marks_is_refused(tmp_path: Path, page: str) -> None:
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(ValueError, match=r"page\.md has \d parts one"):
        with_parts(tmp_path / "page.md", {"one": "new"})
