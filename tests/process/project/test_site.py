"""The documentation site: built strictly, and what its hook does to navigation and links."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mkdocs
import pytest
from markdown import Markdown

from tests.pages.site import expanded, leaves
from tests.pages.words import GLOSSARY, Words
from tests.services.fixtures import missing
from tests.source import ROOT

pytestmark = pytest.mark.slow

BUILD_S = 400.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` does it: any dead link or anchor fails.

    Not with `--quiet`: warnings that aren't said aren't counted.
    """
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_what_lies_beside_the_pages_is_on_the_site_too(site: Path) -> None:
    assert 'href="project/index.html"' in (site / "index.html").read_text()  # README.md
    assert (site / "project" / "examples" / "tickover.yaml").read_bytes() == (
        ROOT / "examples/tickover.yaml"
    ).read_bytes()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert "//fonts." not in (site / "index.html").read_text()


# Asks the site's index as its page does: lunr, with the theme's weights of title and text, and each page's own.
ASK = """
const lunr = require(process.argv[1]);
const { docs } = JSON.parse(require("fs").readFileSync(process.argv[2]));
const index = lunr(function () {
  this.ref("location");
  this.field("title", { boost: 1e3 });
  this.field("text", { boost: 1 });
  for (const one of docs) this.add(one, { boost: one.boost || 1 });
});
const found = process.argv.slice(3).map((words) => [words, index.search(words).map((one) => one.ref)]);
console.log(JSON.stringify(Object.fromEntries(found)));
"""
WANTED = {
    "redrive": "how-to/redrive-dead-letters.html",
    "cancel": "how-to/cancel-and-reschedule.html",
    "order": "how-to/keep-the-order-of-a-key.html",
    "schedule": "how-to/schedule-from-a-table.html",
    "replicas": "how-to/run-several-replicas.html",
    "alerts": "how-to/read-lateness-and-alerts.html",
    "transaction": "how-to/end-a-hanging-transaction.html",
    "upgrade": "how-to/upgrade.html",
}


def test_the_search_finds_how_tos_before_decisions(site: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        missing("Node", "the package nodejs")
    shutil.copy(Path(mkdocs.__file__).parent / "contrib/search/templates/search/lunr.js", tmp_path / "lunr.js")
    command = [str(node), "-e", ASK, str(tmp_path / "lunr.js"), str(site / "search" / "search_index.json"), *WANTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_S)
    for words, places in json.loads(done.stdout).items():
        assert WANTED[words] in places[:3], words
        before = places[: places.index(WANTED[words])]
        assert not any(place.startswith("decisions/") for place in before), words


def test_there_are_five_doors(site: Path) -> None:
    named = re.findall(r'class="md-tabs__link">\s*([^<]*?)\s*<', (site / "index.html").read_text())
    assert named == ["Start", "Do", "Understand", "Look up", "Operate"]


def test_every_link_of_a_word_leads_to_the_glossary(site: Path) -> None:
    text = (site / "how-to" / "redrive-dead-letters.html").read_text()
    assert 'class="word" href="../glossary.html#quarantine"' in text


@pytest.fixture
def words(tmp_path: Path) -> Words:
    (tmp_path / GLOSSARY).write_text("## Dead letter\n\n## Policy\n\n## Due\n")
    return Words(tmp_path / GLOSSARY)


def test_a_word_is_linked_once_where_it_first_stands_in_a_text(words: Words) -> None:
    words.page = "how-to/x.md"
    html = Markdown(extensions=[words]).convert("# Policy\n\n`policy` [a policy](x) is due. See policies, policy.")
    assert html.count('class="word"') == 1
    assert html.endswith('See <a class="word" href="../glossary.md#policy">policies</a>, policy.</p>')


def test_words_are_linked_in_emphasis_and_in_the_order_in_which_they_stand(words: Words) -> None:
    words.page = "x.md"
    html = Markdown(extensions=[words]).convert("A *dead letter* of a policy, and a dead-letter topic.")
    assert html == (
        '<p>A <em><a class="word" href="glossary.md#dead-letter">dead letter</a></em> of a '
        '<a class="word" href="glossary.md#policy">policy</a>, and a dead-letter topic.</p>'
    )


def test_pages_to_look_something_up_have_no_such_links(words: Words) -> None:
    assert Markdown(extensions=[words]).convert("A policy.") == "<p>A policy.</p>"


def test_cells_have_their_heads_and_names_stay_whole(words: Words) -> None:
    table = "| name | what |\n| --- | --- |\n| `a_name` | `two words` |"
    html = Markdown(extensions=["tables", words]).convert(table)
    assert '<td data-head="name"><code class="name">a_name</code></td>' in html
    assert '<td data-head="what"><code>two words</code></td>' in html


def test_a_pattern_stands_for_the_pages_that_are_named_nowhere_else(tmp_path: Path) -> None:
    for name in ("index.md", "b.md", "a.md", "named.md", "x/one.md", "x/index.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    nav = ["index.md", {"Guides": "x/*"}, {"More": ["named.md", "*"]}]
    assert expanded(nav, tmp_path, set(leaves(nav))) == [
        "index.md",
        {"Guides": ["x/index.md", "x/one.md"]},
        {"More": ["named.md", "a.md", "b.md"]},
    ]
