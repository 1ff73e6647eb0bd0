"""The house rules that a formatter or linter does not know. CONTRIBUTING.md gives the reasons."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest
from pydantic import BaseModel

from tests.source import ROOT, Source, attributes_read, environment_names, python_files, text_files

pytestmark = pytest.mark.slow  # `make check` runs them

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
STORY_FILE_LINES_MAX = 600  # a file that tells a whole story may be long, and the rest is short
STORIES = frozenset(
    {
        "sidecar/engine/commit/exactly_once.py",
        "sidecar/engine/emission/emitter.py",
        "sidecar/engine/engine.py",
        "sidecar/engine/partition/partition.py",
    }
)
FOLDER_MODULES_MAX = 15
# These levels of tests have the product's folders, without the word sidecar, and one for the repository itself.
MIRRORED = ("unit", "process", "property", "contract", "integration")
OF_THE_REPOSITORY = "project"
# Whoever imports one of these, or asks for one of the fixtures, starts a process, a site or a socket.
STARTERS = (
    "api.serving.server", "multiprocessing", "sidecar.demo.demo", "sidecar.embedded.java_kafka.MavenKafka",
    "sidecar.embedded.kafka", "sidecar.embedded.valkey", "socket", "subprocess", "tests.helm", "tests.mutants.Bench",
    "tests.pages.site", "tests.services.fixtures", "tests.services.kafka_servers", "tests.services.mock_kafka",
    "tests.services.raw_client", "tests.services.reference_broker", "tests.services.reference_clients",
    "tests.unit.api.access.oidc_world.jwks_server",
)  # fmt: skip
STARTED = frozenset({"broker", "each_kafka", "kafka", "kafka_choice", "kafka_place", "mock_kafka"})
TEST_FILE_LINES_MAX = 600  # tables of cases are long, and nobody has to hold them in mind at once
PARAMETERS_MAX = 6

EMPTY_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "managers", "core", "misc", "base"})
EMPTY_SUFFIXES = ("Manager", "Helper", "Helpers", "Util", "Utils")
# One letter of each stands in brackets, so that this file does not match itself.
UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX|[N]otImplementedError)\b")
MACHINE = re.compile(r"/wor[k]/(main|shared)|/tmp/wor[k]|/roo[t]/|/hom[e]/[a-z]+/|/opt/whee[l]s")
LOCK_FOREIGN = re.compile(r"://|--(extra-)?index-url|--find-links|--trusted-host")
# The path of a module in backticks, from any folder on.
FILE_NAMED = re.compile(r"`([a-z_/]+\.py)`")
# Above a `def` that has to break a rule of size stands `# tidy:` and the reason.
EXCUSE = re.compile(r"\s*# tidy: \w+")
# Such a word points to something that only a reader of the code beside it knows. In backticks it is a name.
PRONOUN = re.compile(
    r"[\s\"'(*]*(its?|they|their|them|this|these|that|those|he|she|we|our|your?|which|who|whose|what|whoever|whatever"
    r"|the\s+same|so\s+(?:many|much)|nor)\b",
    re.IGNORECASE,
)
# Kafka's names, class tree and locks win here: who knows Kafka finds everything where he expects it.
KAFKA_NAMED = ("purgatory/", "broker/")
# A framework calls these by name: their parameters are what users see, not what a reader must hold in mind.
FRAMEWORK_DECORATORS = frozenset({"command", "callback", "get", "put", "post", "patch", "delete"})
# What waits for a condition may sleep between two looks at it.
WAITING = re.compile(r"^_?(wait|poll|until|eventually)")
# Time and chance are arguments in these packages; import-linter checks their imports, this file their calls.
CLOCKLESS = (
    "api.message",
    "policies.",
    "purgatory.",
    "sidecar.engine.",
    "sidecar.ledger.",
    "sidecar.model.",
)
# The clock itself, and what waits for a topic to be read, in a thread of its own.
CLOCKED = frozenset(
    {
        "purgatory.timer.clock",
        "sidecar.engine.clock",
        "policies.topic.reader",
        "policies.topic.store",
        "policies.topic.topic",
    }
)
CLOCKS = frozenset(
    {"now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "urandom"}
)
ENTRY_POINTS = frozenset({"sidecar.__main__", "pipeline.__main__"})
# Read by something else than the settings: the file itself, the command line, and the containers' own.
OTHER_VARIABLES = frozenset(
    {"TICKOVER_CONFIG", "TICKOVER_URL", "TICKOVER_TOKEN", "TICKOVER_TOKEN_FILE", "TICKOVER_CA_FILE", "TICKOVER_IMAGE"}
)

SOURCES = python_files()
PRODUCT = [source for source in SOURCES if source.is_product]
TESTS = [source for source in SOURCES if source.is_test]


def refuse(faults: list[str]) -> None:
    """Fail with one fault per line."""
    if faults:
        pytest.fail("\n".join(["", *faults]), pytrace=False)


def at(source: Source, node: ast.stmt | ast.expr) -> str:
    return f"{source.place}:{node.lineno}"


def test_files_are_short() -> None:
    faults = []
    for source in SOURCES:
        lines = len(source.text.splitlines())
        limit = TEST_FILE_LINES_MAX if source.is_test else FILE_LINES_MAX
        if source.place in STORIES:
            limit = STORY_FILE_LINES_MAX
        if lines > limit:
            faults.append(f"{source.place}: {lines} lines, at most {limit}: split it by meaning")
    refuse(faults)


def too_full(modules: Counter[str]) -> list[str]:
    """A fault for each folder that has more modules than a folder may have."""
    return [
        f"{folder}: {count} modules, at most {FOLDER_MODULES_MAX}: split it by meaning"
        for folder, count in sorted(modules.items())
        if count > FOLDER_MODULES_MAX
    ]


def test_folders_are_small() -> None:
    """A folder is one concept: a reader sees in one look what is in it."""
    modules = Counter(
        str(source.path.relative_to(ROOT).parent) for source in PRODUCT if source.path.name != "__init__.py"
    )
    refuse(too_full(modules))


def level_and_folder(source: Source) -> tuple[str, str]:
    """Level and folder, `unit` and `engine/commit` say, of a test; empty for what is in none."""
    level, _, folder = source.place.removeprefix("tests/").rpartition("/")[0].partition("/")
    return level, folder


def mirrored() -> list[Source]:
    return [source for source in TESTS if level_and_folder(source)[0] in MIRRORED]


def test_tests_stand_where_the_product_has_what_they_test() -> None:
    packages = {source.place.rpartition("/")[0].removeprefix("sidecar/") for source in PRODUCT} - {"sidecar"}
    faults = []
    for source in mirrored():
        _, folder = level_and_folder(source)
        if folder and folder not in {*packages, OF_THE_REPOSITORY}:
            faults.append(f"{source.place}: the product has no folder {folder}")
        elif not folder and source.path.name.startswith("test_"):
            faults.append(f"{source.place}: belongs in the folder of what it tests, as the product has it")
    refuse(faults)


def test_folders_of_tests_are_small() -> None:
    modules = Counter(source.place.rpartition("/")[0] for source in mirrored() if source.path.name != "__init__.py")
    refuse(too_full(modules))


def test_nobody_makes_calls_of_the_client_that_end_the_process() -> None:
    """See docs/decisions/0070."""
    sources = [source for source in python_files() if source.is_product]
    assert not [source for source in sources if "list_consumer_group_offsets" in source.attributes_read]


def test_unit_tests_start_nothing() -> None:
    places = {source.place for source in SOURCES}
    own = [one for one in STARTERS if one.startswith(("api.", "sidecar.", "tests."))]
    faults = [
        f"{one}: there is no such module"
        for one in own
        if not {f"{name.replace('.', '/')}.py" for name in (one, one.rpartition(".")[0])} & places
        and not any(place.startswith(one.replace(".", "/") + "/") for place in places)
    ]
    for source in TESTS:
        if not source.place.startswith("tests/unit/") or not source.path.name.startswith(("test_", "conftest")):
            continue
        used = {one for one in STARTERS for name in source.imports if f"{name}.".startswith(f"{one}.")}
        used |= {
            item.arg for function in source.functions() for item in function.args.args
            if item.arg in STARTED and function.name.startswith("test_")
        }  # fmt: skip
        faults += [f"{source.place}: {name} starts something: it belongs in tests/process" for name in sorted(used)]
    refuse(faults)


def is_excused(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = min((function.lineno, *(item.lineno for item in function.decorator_list)))
    return first > 1 and bool(EXCUSE.match(source.text.splitlines()[first - 2]))


def test_functions_are_short() -> None:
    faults = []
    for source in SOURCES:
        for function in source.functions():
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX and not is_excused(source, function):
                faults.append(
                    f"{at(source, function)}: {function.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
                )
    refuse(faults)


def is_called_by_framework(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    targets = (item.func if isinstance(item, ast.Call) else item for item in function.decorator_list)
    return any(isinstance(target, ast.Attribute) and target.attr in FRAMEWORK_DECORATORS for target in targets)


def test_functions_take_few_parameters() -> None:
    faults = []
    for source in PRODUCT:
        registered = set(re.findall(r"\.command\([^)]*\)\((\w+)\)", source.text))
        for function in source.functions():
            if is_called_by_framework(function) or function.name in registered:
                continue
            arguments = function.args
            names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > PARAMETERS_MAX and not is_excused(source, function):
                faults.append(f"{at(source, function)}: {function.name} takes {count}, at most {PARAMETERS_MAX}")
    refuse(faults)


def test_names_say_something() -> None:
    named_here = [source for source in SOURCES if not source.place.startswith(KAFKA_NAMED)]
    faults = [
        f"{source.place}: a file's name says what is in it"
        for source in named_here
        if EMPTY_NAMES & set(source.path.stem.split("_")) or source.path.parent.name in EMPTY_NAMES
    ]
    for source in named_here:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_SUFFIXES):
                faults.append(f"{at(source, node)}: the name {node.name} does not say what it does")
    refuse(faults)


def beginning_with_a_pronoun(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Docstrings of the module, its classes and functions, inner ones included, each with its pronoun."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = PRONOUN.match(ast.get_docstring(node) or "")
            if found:
                yield node.body[0], found[1]


def test_docstrings_begin_with_what_they_are_about() -> None:
    refuse(
        [
            f"{at(source, docstring)}: begins with {word!r}: name the thing or the act first"
            for source in SOURCES
            for docstring, word in beginning_with_a_pronoun(source.tree)
        ]
    )


def test_a_pronoun_is_found_in_the_docstring_of_every_kind_of_definition() -> None:
    text = '''"""It is a module."""

class Lane:
    """
    The
    same lane.
    """

    async def read(self):
        """"Those" that came."""

        def decide():
            """what is due"""
'''
    found = {(docstring.lineno, word) for docstring, word in beginning_with_a_pronoun(ast.parse(text))}
    assert found == {(1, "It"), (4, "The\nsame"), (10, "Those"), (13, "what")}


@pytest.mark.parametrize(
    "docstring", ["Its end.", "it's done", "Who, then?", "(This one.)", "WHATEVER comes", "So many were.", "Nor that."]
)
def test_a_pronoun_is_found_however_it_is_written(docstring: str) -> None:
    assert list(beginning_with_a_pronoun(ast.parse(repr(docstring))))


@pytest.mark.parametrize(
    "docstring", ["Items.", "Whether it is due.", "The samples.", "All that is due.", "`what` and its value.", ""]
)
def test_other_words_and_names_in_backticks_are_no_pronoun(docstring: str) -> None:
    assert not list(beginning_with_a_pronoun(ast.parse(repr(docstring))))


def lines_matching(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            found = pattern.search(line)
            if found:
                yield f"{path.relative_to(ROOT).as_posix()}:{number}", found.group()


def test_files_named_in_the_code_exist() -> None:
    """A docstring or comment that names what has moved sends its reader away."""
    places = [f"/{source.place}" for source in SOURCES]
    refuse(
        [
            f"{source.place}: there is no {name}"
            for source in SOURCES
            for name in FILE_NAMED.findall(source.text)
            if not any(place.endswith(f"/{name}") for place in places)
        ]
    )


def test_nothing_is_left_unfinished() -> None:
    refuse([f"{place}: {word}" for place, word in lines_matching(UNFINISHED)])


def test_nothing_names_this_machine() -> None:
    refuse([f"{place}: {word} exists on one machine only" for place, word in lines_matching(MACHINE)])


def test_lock_files_name_no_index() -> None:
    faults = []
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LOCK_FOREIGN.search(line):
                faults.append(f"requirements/{path.name}:{number}: {line.strip()}")
    refuse(faults)


def sleeps(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            yield node


def test_tests_wait_for_a_signal() -> None:
    faults = []
    for source in TESTS:
        if source.place.startswith("tests/services/"):
            continue
        allowed = {
            id(call) for function in source.functions() if WAITING.match(function.name) for call in sleeps(function)
        }
        faults += [
            f"{at(source, call)}: sleeping tests are slow or flaky: wait for a condition in a wait_* function"
            for call in sleeps(source.tree)
            if id(call) not in allowed
        ]
    refuse(faults)


def test_every_module_is_used() -> None:
    used = {name for source in PRODUCT for name in source.imports if name != source.module}
    for source in SOURCES:
        if not source.is_product:
            used |= {name for name in source.imports if name.startswith("tests.")}
    supports = [source for source in TESTS if not source.path.name.startswith(("test_", "conftest", "__init__"))]
    packages = {name.rpartition(".")[0] for name in used}
    faults = [
        f"{source.place}: nothing imports it"
        for source in (*PRODUCT, *supports)
        if source.module not in used | packages | ENTRY_POINTS
        and source.path.name != "__init__.py"
        and f'"{source.module}"' not in (ROOT / "Makefile").read_text()
        and f"-m {source.module}" not in (ROOT / "Makefile").read_text()
    ]
    refuse(faults)


def imported_at_start(source: Source, modules: set[str]) -> set[str]:
    """Modules that are imported while this one is: its statements outside functions and `if TYPE_CHECKING`."""
    found = set()
    for node in source.tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= modules else names | {node.module}
    return found & modules


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring, the first one again at the end; empty without a ring."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        return ring
    return []


def test_no_modules_import_one_another_in_a_circle() -> None:
    """An import of another one of them first would fail, and nobody notices until a test is run by itself."""
    modules = {source.module for source in PRODUCT}
    graph = {source.module: imported_at_start(source, modules) - {source.module} for source in PRODUCT}
    assert not circle(graph)


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])
    assert not circle({"a": {"b", "c"}, "b": {"c"}})


def setting_fields(config: Source) -> Iterator[tuple[str, ast.AnnAssign]]:
    for section in config.tree.body:
        if isinstance(section, ast.ClassDef) and section.name.endswith("Settings"):
            for node in section.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield f"{section.name}.{node.target.id}", node


def test_every_setting_is_read() -> None:
    configs = [source for source in SOURCES if source.module.startswith("sidecar.settings.")]
    outside = [s for s in PRODUCT if not s.module.startswith("sidecar.settings.")]
    read = {name for source in outside for name in source.attributes_read}
    for function in (function for config in configs for function in config.functions()):
        if function.name in read:
            read |= set(attributes_read(function))
    refuse(
        [
            f"{at(config, node)}: nothing reads {name}"
            for config in configs
            for name, node in setting_fields(config)
            if name.rpartition(".")[2] not in read
        ]
    )


def test_pure_modules_read_no_clock() -> None:
    faults = []
    for source in SOURCES:
        if not source.module.startswith(CLOCKLESS) or source.module in CLOCKED:
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
                faults.append(f"{at(source, node)}: {ast.unparse(node.func)}() here: time and chance are arguments")
    refuse(faults)


def test_packages_hold_a_docstring_and_public_names() -> None:
    faults = []
    for source in SOURCES:
        if source.path.name != "__init__.py":
            continue
        if not ast.get_docstring(source.tree):
            faults.append(f"{source.place}: says in a docstring what the package is")
        for node in source.tree.body[1:]:
            is_public = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            if not (is_public or isinstance(node, ast.Import | ast.ImportFrom)):
                faults.append(f"{at(source, node)}: only a docstring and public names stand in __init__.py")
    refuse(faults)


def known_variables() -> set[str]:
    from sidecar.settings.settings import Settings

    return set(OTHER_VARIABLES) | set(variables_of(Settings, "TICKOVER_"))


def variables_of(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        variable = prefix + (field.alias or name).upper()
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from variables_of(inner, f"{variable}__")
        else:
            yield from (variable, f"{variable}_FILE")


def test_every_variable_named_anywhere_is_a_setting() -> None:
    known = known_variables()
    places = [ROOT / "README.md", ROOT / "docker-compose.yml", ROOT / "Dockerfile"]
    for place in ("charts", "docs", "examples"):
        places += [path for path in sorted((ROOT / place).rglob("*")) if path.is_file() and path.suffix != ".png"]
    faults = []
    for path in places:
        for name in sorted(environment_names(path.read_text(encoding="utf-8")) - known):
            faults.append(f"{path.relative_to(ROOT).as_posix()}: there is no setting {name}")
    refuse(faults)
