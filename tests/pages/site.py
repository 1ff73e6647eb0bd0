"""mkdocs hooks: patterns in the navigation, words explained, the order of the search, links to what is beside docs/.

Pages lie where readers of the repository look for them: README.md, CHANGELOG.md and others are not in docs/, and pages
link to examples and code. On the site all that is below `project/`, and links lead there.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.pages.words import GLOSSARY, Words, boost_of

BESIDE: Final = "project/"
# Pages for who reads on, not for who looks something up: there words are linked to the glossary.
EXPLAINED: Final = (
    "index.md", "tutorial.md", "how-to/", "migrate/", "explanation/", "kubernetes.md", "containers.md", "failures.md",
    "security.md", "api-security.md", "tracing.md", "project/README.md",
)  # fmt: skip
LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of directories where the navigation has patterns, and let Markdown know the glossary."""
    docs = Path(config.docs_dir)
    config.markdown_extensions.append(Words(docs / GLOSSARY))
    named = set(leaves(config.nav))
    config.nav = expanded(config.nav, docs, named)
    return config


def leaves(nav: Any) -> Iterator[str]:
    """All pages and patterns of a navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for item in nav.values():
            yield from leaves(item)
    else:
        for item in nav or ():
            yield from leaves(item)


def expanded(nav: Any, docs: Path, named: set[str]) -> Any:
    """The navigation with pages for patterns; a section of nothing but a pattern is a list of pages too."""
    if isinstance(nav, dict):
        return {title: expanded([item] if isinstance(item, str) else item, docs, named) for title, item in nav.items()}
    pages: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            found = [path.relative_to(docs).as_posix() for path in docs.glob(f"{item}.md")]
            pages += sorted(set(found) - named, key=lambda page: (not page.endswith("/index.md"), page))
        else:
            pages.append(expanded(item, docs, named) if isinstance(item, dict) else item)
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages beside docs/ that the navigation names."""
    for page in leaves(config.nav):
        if page.startswith(BESIDE):
            files.append(beside(page, config))
    return files


def beside(place: str, config: MkDocsConfig) -> File:
    """A file that is not in docs/."""
    source = Path(config.docs_dir).parent / place.removeprefix(BESIDE)
    return File.generated(config, place, abs_src_path=str(source))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their targets are on the site. A directory has no page: its name stays, as text.

    The page's place says how the search counts it, and whether the glossary's words are explained on it.
    """
    page.meta.setdefault("search", {"boost": boost_of(page.file.src_uri)})
    (words,) = [one for one in config.markdown_extensions if isinstance(one, Words)]
    words.page = page.file.src_uri if page.file.src_uri.startswith(EXPLAINED) else ""

    def link(found: re.Match[str]) -> str:
        text, (target, hash, anchor) = found[1], found[2].partition("#")
        if not target or ":" in target:
            return found[0]
        here = page.file.src_uri
        repository = here.removeprefix(BESIDE) if here.startswith(BESIDE) else f"docs/{here}"
        there = posixpath.normpath(posixpath.join(posixpath.dirname(repository), target))
        path = Path(config.docs_dir).parent / there
        if path.is_dir():
            return text
        if not path.is_file():
            raise PluginError(f"{repository}: there is no {there}")
        place = there.removeprefix("docs/") if there.startswith("docs/") else BESIDE + there
        if place.startswith(BESIDE) and files.get_file_from_path(place) is None:
            if place.endswith(".md"):
                raise PluginError(f"{repository}: {there} is linked to, and not in the navigation")
            files.append(beside(place, config))
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here))}{hash}{anchor})"

    return LINK.sub(link, markdown)
