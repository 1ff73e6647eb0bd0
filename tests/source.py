"""The project's own source, read once: what the tidy rules and the layer rules ask about."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("sidecar", "api", "policies", "purgatory", "broker", "pipeline")
PLACES = (*PACKAGES, "tests", "benchmarks", "examples")
TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".in", ".ini", ".json", ".md", ".properties", ".py", ".sh", ".toml", ".tpl", ".txt", ".xml"}
    | {".yaml", ".yml"}
)
SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "build", "data", "dist", "reports"})


class Source:
    """One Python file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.relative_to(ROOT).as_posix()
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.is_product = parts[0] in PACKAGES
        self.is_test = parts[0] == "tests"

    def __repr__(self) -> str:
        return self.place

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        return ast.parse(self.text, filename=self.place)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Names of the modules it imports, and of what it takes from them (which may be modules too)."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)

    @cached_property
    def attributes_read(self) -> frozenset[str]:
        """Every name that it reads behind a dot."""
        return frozenset(attributes_read(self.tree))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, inner ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def attributes_read(tree: ast.AST) -> Iterator[str]:
    """Names read behind a dot below `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def _is_skipped(path: Path) -> bool:
    directories = path.relative_to(ROOT).parts[:-1]
    return any(
        part in SKIPPED_DIRECTORIES or (part.startswith(".") and part != ".ci") for part in directories[:1]
    ) or any(part == "__pycache__" or part.endswith(".egg-info") for part in directories)


def python_files() -> list[Source]:
    """Every Python file of the project."""
    return [Source(path) for place in PLACES for path in sorted((ROOT / place).rglob("*.py"))]


def text_files() -> list[Path]:
    """Every file of the project that people or tools read as text."""
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        # in a worktree .git is a file, with the place of the repository
        if path.is_file() and path.suffix in TEXT_SUFFIXES and path.name != ".git" and not _is_skipped(path)
    ]


def environment_names(text: str) -> set[str]:
    """The names of tickover's environment variables in a text, without the tests' and librdkafka's."""
    names = set(re.findall(r"\bTICKOVER_[A-Z0-9_]*[A-Z0-9]\b", text))
    return {name for name in names if not name.startswith(("TICKOVER_TEST_", "TICKOVER_KAFKA__CLIENT__"))}
