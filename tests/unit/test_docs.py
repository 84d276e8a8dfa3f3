"""The documentation: links lead somewhere, each page is found from README.md, and files
and functions that are named exist.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from supervisor_tasks.ledger import facts
from supervisor_tasks.ledger.facts import Fact

REPOSITORY = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
).stdout.split()
PAGES = [name for name in TRACKED if name.endswith(".md")]
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PACKAGES = "accounts|benchmarking|chain|cli|config|grid|indexer|jobs|ledger|messaging|monitoring|provider|reconciliation"
FILE = re.compile(
    rf"`((?:supervisor_tasks|grpc_callbacks|plugins|tests|devgrid|benchmarks|docker|recovery|slurm|wallet|{PACKAGES})"
    r"/[\w/.-]+\.(?:py|sh|c|lua|yaml))`"
)
MODULE = re.compile(r"`(\w+\.py)`")
# `module.py` (`name`) and `name`, `name` in `module.py`
NAMED_IN = re.compile(
    r"`([\w/]+\.py)` \(((?:`[\w.]+`(?:, )?)+)|((?:`[\w.]+`, )*`[\w.]+`),? in `([\w/]+\.py)`"
)
FUNCTION = re.compile(r"^`([A-Za-z_]\w*(?:\.\w+)*)`$")


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text()


def links_of(page: str) -> Iterator[tuple[str, Path, str]]:
    """The links within the repository: the text, the file, and the heading (none: the
    file as a whole).
    """
    for text, target, heading in LINK.findall(CODE.sub("", text_of(page))):
        if not target.startswith(("http:", "https:", "mailto:")):
            file = (
                REPOSITORY / page if not target else (REPOSITORY / page).parent / target
            )
            yield text, file.resolve(), heading


@cache
def headings_of(file: Path) -> set[str]:
    """The headings of a page, as GitHub and mkdocs write them in links."""
    lines = re.findall(r"^#+ (.*)$", CODE.sub("", file.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-")
        for line in lines
    }


@pytest.mark.parametrize("page", PAGES)
def test_page__its_links_and_the_files_that_it_names__are_there(page: str) -> None:
    text = text_of(page)
    assert [str(file) for _, file, _ in links_of(page) if not file.exists()] == []
    assert [
        (str(file), at)
        for _, file, at in links_of(page)
        if at and at not in headings_of(file)
    ] == []
    roots = REPOSITORY, REPOSITORY / "supervisor_tasks"
    for name in FILE.findall(text):
        assert any((root / name).exists() for root in roots), name
    known = {Path(name).name for name in TRACKED}
    assert [name for name in MODULE.findall(text) if name not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_page__functions_that_it_links_to__are_in_the_linked_file(page: str) -> None:
    missing = [
        (named[1], file.name)
        for text, file, _ in links_of(page)
        if file.suffix == ".py"
        and (named := FUNCTION.match(text))
        and not defines(file, named[1])
    ]
    assert missing == []


def defines(file: Path, dotted: str) -> bool:
    """Whether the file has each part of a name, as a class, a function or a
    constant.
    """
    source = file.read_text()
    return all(
        re.search(rf"^\s*(?:async )?(?:def|class) {part}\b|^{part}\b", source, re.M)
        for part in dotted.split(".")
    )


def test_pages__each__is_found_from_the_readme() -> None:
    found, new = set[Path](), {REPOSITORY / "README.md"}
    while new:
        found |= new
        pages = [file for file in new if file.suffix == ".md"]
        new = {
            file
            for page in pages
            for _, file, _ in links_of(str(page.relative_to(REPOSITORY)))
            if file.is_file()
        } - found
    assert [page for page in PAGES if (REPOSITORY / page) not in found] == []


MAX_LINE_LENGTH = 120


@pytest.mark.parametrize("page", PAGES)
def test_page__its_lines__have_120_characters_at_most(page: str) -> None:
    lines = CODE.sub("", text_of(page)).splitlines()
    longer = [
        line
        for line in lines
        if len(line) > MAX_LINE_LENGTH and not line.startswith("|")
    ]  # a table's row is one line
    assert longer == []


COMMAND = re.compile(r"^supervisor ((?:[a-z-]+ ?)+)", re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`]+)`")
REFERENCE = "docs/reference/cli.md"


@cache
def commands() -> frozenset[str]:
    return frozenset(
        re.findall(r"^## supervisor ([a-z -]+)$", text_of(REFERENCE), re.MULTILINE)
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page != REFERENCE])
def test_page__commands_that_it_shows__are_commands(page: str) -> None:
    text = text_of(page)
    shown = [*CODE.findall(text), *CODE_SPAN.findall(CODE.sub("", text))]
    found = [
        match[1].split()
        for part in shown
        for match in COMMAND.finditer(part.removeprefix("```\n"))
    ]
    assert [words for words in found if not is_command(words)] == []


def is_command(words: list[str]) -> bool:
    """Whether words begin with a command; a noun alone stands for all of its
    commands.
    """
    below = {command for command in commands() if command.startswith(f"{words[0]} ")}
    return (
        " ".join(words[:2]) in below
        if len(words) > 1 and below
        else words[0] in commands()
    )


# functions and files that a reader opens at most: to sbatch, to FINISHED, from settle
JOURNEYS = ((22, 15), (20, 14), (12, 7))
JOURNEY = re.compile(
    r"^### [^\n]+\n\n(\d+) functions in (\d+) files, (\d+) trips through Celery\.\n\n(.*?)(?=^#|\Z)",
    re.M | re.S,
)


def test_journeys__their_counts__are_those_of_their_paths() -> None:
    page = "docs/explanation/job-lifecycle.md"
    journeys = JOURNEY.findall(text_of(page))
    for (functions, files, trips, path), (most_functions, most_files) in zip(
        journeys, JOURNEYS, strict=True
    ):
        opened = {
            (text, target)
            for text, target, _ in LINK.findall(path)
            if FUNCTION.match(text)
        }
        assert (len(opened), len({target for _, target in opened})) == (
            int(functions),
            int(files),
        )
        assert path.count("(Celery)") == int(trips)
        assert int(functions) <= most_functions
        assert int(files) <= most_files


def test_journeys__each_function_of_a_path__is_named_by_another_one_of_it() -> None:
    """A function that only passes the job on is not left out of a path."""
    page = "docs/explanation/job-lifecycle.md"
    for *_, path in JOURNEY.findall(text_of(page)):
        opened = [
            (text.strip("`"), (REPOSITORY / page).parent / target)
            for text, target, _ in LINK.findall(path)
            if FUNCTION.match(text)
        ]
        bodies = [definition_of(name, file) for name, file in opened]
        named = set[str]().union(*map(names_in, bodies))
        left = [
            name
            for (name, _), body in zip(opened[1:], bodies[1:], strict=True)
            if name.rpartition(".")[2] not in named and not is_rule_or_table(body)
        ]
        assert left == []


def definition_of(name: str, file: Path) -> ast.stmt:
    """The function, the method or the assignment of that name in the file."""
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        (found,) = (node for node in body if part in defined_by(node))
        body = getattr(found, "body", [])
    return found


def defined_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node]
    return {ast.unparse(getattr(target, "target", target)) for target in targets}


def names_in(body: ast.stmt) -> set[str]:
    """The names that are used in a body, of methods the last part."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Name | ast.Attribute)
    } - defined_by(body)


def is_rule_or_table(body: ast.stmt) -> bool:
    """Whether it is a table, or the rule of an event (`@on`)."""
    if not isinstance(body, ast.FunctionDef):
        return isinstance(body, ast.Assign | ast.AnnAssign)
    return any(ast.unparse(each).startswith("on(") for each in body.decorator_list)


def test_facts__that_a_page_names__are_facts_of_the_ledger() -> None:
    names = {fact.name for fact in vars(facts).values() if isinstance(fact, Fact)}
    named = {
        (page, name)
        for page in PAGES
        for list_ in re.findall(
            r"\bfacts?\s+((?:`[^`]+`(?:,\s+|\s+and\s+)?)+)", text_of(page)
        )
        for name in re.findall(r"`([^`]+)`", list_)
    }
    assert named
    assert {(page, name) for page, name in named if name not in names} == set()


def test_entry_pages__their_length__is_an_hours_reading_at_most() -> None:
    assert len(text_of("README.md").splitlines()) <= 150
    # without the diagrams
    text = re.sub(r"```.*?```", "", text_of("docs/architecture.md"), flags=re.DOTALL)
    assert sum(re.search(r"\w", word) is not None for word in text.split()) <= 1200


@pytest.mark.parametrize(
    ("page", "heading"),
    [("README.md", "## The tree"), ("docs/architecture.md", "## Packages")],
)
def test_entry_pages__their_list_of_packages__has_each_one(
    page: str, heading: str
) -> None:
    below = text_of(page).partition(f"{heading}\n")[2].partition("\n## ")[0]
    top_level = {"grpc_callbacks", "plugins", "benchmarks"}
    packages = {
        Path(name).parts[1]
        for name in TRACKED
        if re.fullmatch(r"supervisor_tasks/\w+/__init__\.py", name)
    }
    assert len(packages) > 20
    assert {name for name in packages | top_level if f"{name}/" not in below} == set()


def rows_of(page: str, heading: str) -> int:
    """The number of rows of the table below a heading."""
    below = text_of(page).partition(f"{heading}\n")[2].partition("\n#")[0]
    return len(re.findall(r"^\|", below, re.MULTILINE)) - 2


def test_architecture__its_parts__are_three_diagrams_and_ten_rows_each() -> None:
    page = "docs/architecture.md"
    assert text_of(page).count("```mermaid") == 3
    assert rows_of(page, "## Invariants") == 10
    assert rows_of(page, "## Where do I change ...?") == 10


def glossary() -> list[list[str]]:
    """The terms with the cells of their rows; a term of a list has one cell."""
    lines = text_of("docs/glossary.md").splitlines()
    rows = [line[1:-1].split("|") for line in lines if line.startswith("|")][2:]
    listed = [[line] for line in lines if re.match(r"\s*[*-] ", line)]
    return [list(map(str.strip, cells)) for cells in rows + listed]


def test_glossary__all_its_terms__are_30_at_most_each_with_the_fields_word() -> None:
    terms = glossary()
    assert len(terms) <= 30
    assert [cells for cells in terms if len(cells) != 3 or not all(cells)] == []
    names = [cells[0] for cells in terms]
    assert names == sorted(set(names)), "in order, each once"


CODE_FILES = (
    ".py",
    ".c",
    ".h",
    ".lua",
    ".sh",
    ".j2",
    ".yaml",
    ".toml",
    ".sol",
    ".proto",
)
CONSTANT = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)[`\[(]")
# of OpenTelemetry, and of the Go program
FOREIGN = re.compile("OTEL_EXPORTER_OTLP_|BENCHMARK_TRANSPORT")
EXPLAINED = [
    page
    for page in PAGES
    if page.startswith(
        ("docs/explanation/", "docs/decisions/", "docs/how-to/", "docs/a")
    )
]


@cache
def words_of_the_code() -> frozenset[str]:
    sources = [
        (REPOSITORY / name).read_text() for name in TRACKED if name.endswith(CODE_FILES)
    ]
    return frozenset(
        word.upper() for source in sources for word in re.findall(r"\w+", source)
    )


@pytest.mark.parametrize("page", EXPLAINED)
def test_page__constants_and_settings_that_it_names__are_in_the_code(page: str) -> None:
    named = set(CONSTANT.findall(CODE.sub("", text_of(page))))
    assert (
        sorted(
            name
            for name in named
            if name not in words_of_the_code() and not FOREIGN.match(name)
        )
        == []
    )


SUPPORTED = re.compile(r"Debian (\d+) with Python (\d+\.\d+)")
TRIED = re.compile(r"^\| Debian (\d+) \| Python (\d+\.\d+)[.,]", re.MULTILINE)


def test_readme__the_systems_that_it_names__are_those_that_were_tried() -> None:
    tried = TRIED.findall(text_of("docs/how-to/other-systems.md"))
    assert len(tried) == 2
    assert SUPPORTED.findall(text_of("README.md")) == tried


NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
)


def test_slurmrestd__how_many_long_tests_it_names__are_marked() -> None:
    tests = [
        text_of(name)
        for name in TRACKED
        if name.startswith("tests/") and name.endswith(".py")
    ]

    def number(marked: str) -> str:
        return NUMBERS[
            sum(len(re.findall(marked, text, re.MULTILINE)) for text in tests)
        ]

    single = number(r"^@rest_in_chaos$")
    files = number(r"^pytestmark = rest_in_chaos$")
    assert (
        f"`make chaos` runs {single} long ones and those of {files} files over slurmrestd"
        in text_of("docs/how-to/slurmrestd.md")
    )


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("docs/architecture.md", 7),
        ("docs/where.md", 40),
        ("docs/where-chain.md", 20),
        ("docs/where-fleet.md", 40),
        ("docs/how-to/change.md", 10),
    ],
)
def test_table__names_beside_a_module__are_defined_there(page: str, least: int) -> None:
    found = NAMED_IN.findall(text_of(page))
    pairs = {
        (before or after, name)
        for before, one, several, after in found
        for name in re.findall(r"[\w.]+", one or several)
    }
    assert len(pairs) >= least
    roots = REPOSITORY, REPOSITORY / "supervisor_tasks"
    for module, name in pairs:
        files = [root / module for root in roots if (root / module).exists()]
        assert any(defines(file, name) for file in files), (module, name)
