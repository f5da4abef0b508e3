"""The documentation: its commands and programs run, what it names exists, and its links lead somewhere.

Its blocks are run by test_pages_of_training.py and test_pages_of_models.py; of those that cannot run here, as of all
others, names of subcommands and settings are checked.
"""

import ast
import re
import runpy
from pathlib import Path

import pytest
from cli_runs import ROOT
from pages import OF_MODELS, PAGES, RUNNABLE, blocks, shared, text_of

from electra_jax import __main__ as command_line
from electra_jax import configs, train_config
from electra_jax.config import settings

TABLES = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))
# Of electra-jax and its scripts; a command may be continued on the next lines.
_COMMAND = re.compile(r"electra-jax ([a-z]+)((?:[^\n`]|\\\n)*)")


def test_the_pages_of_models_can_run():
    assert OF_MODELS < RUNNABLE


def test_pages_begin_with_the_same_blocks():
    """A page whose first blocks differ from the others' in a letter runs its own, which takes longer."""
    found = {Path(page).stem: shared(page) for page in RUNNABLE}
    run = dict.fromkeys(("export", "finetune", "hub", "predict", "warm_start"), 1)
    corpus = {"compare": 1, "curves": 2, "systems": 2}
    assert {page: count for page, count in found.items() if count} == run | corpus


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_are_python(page):
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_configs_and_settings_exist(page):
    text = text_of(page)
    assert {name for name, _ in _COMMAND.findall(text)} <= {*command_line.COMMANDS}
    assert set(re.findall(r"python -m electra_jax\.(\w+)", text)) <= {"train"}
    assert set(re.findall(r"--config=(?:configs/)?([a-z]+)\b(?!/)", text)) <= {*dir(configs)}
    known = {*settings.settings_of(train_config.TrainConfig)}
    for config in (configs.table(), configs.tags(), configs.squad(version=2.0)):
        known |= settings.flatten(config).keys()
    known |= {name.rpartition(".")[0] for name in known}
    named = set(re.findall(r"(?:--|`)config\.([a-z_0-9.]*[a-z_0-9])", text)) - {"json"}
    assert named - known == set()


@pytest.fixture(scope="module")
def usage_by_command():
    return {part.split("\n", 1)[0]: part for part in TABLES["commands_page"]().split("\n## ")[1:]}


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_exist(page, usage_by_command):
    """Every --name of a command is in the help of its subcommand."""
    for block in blocks(page):
        if block.language not in ("bash", "console"):
            continue
        for name, rest in _COMMAND.findall(block.text.replace("\\\n", " ")):
            for option in re.findall(r"--([a-z_0-9]+)", rest.split(" | ")[0]):
                assert option == "config" or re.search(rf"--{option}\b", usage_by_command[name]), f"{name} --{option}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_links_exist(page):
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    folder = (ROOT / page).parent
    paths = re.findall(r"`((?:electra_jax|tests|configs|benchmarks|docs|launch)/[\w./]+\.\w+)", text)
    assert [name for name in paths if not (ROOT / name).exists() and "_build" not in name] == []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        other = (folder / name).resolve() if name else ROOT / page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), target


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_the_page_of_settings_is_up_to_date():
    page = TABLES["SETTINGS"].read_text(encoding="utf-8")
    assert page == TABLES["settings_page"](), "run: python docs/make_tables.py"


@pytest.mark.parametrize("name", TABLES["TABLES"])
def test_every_table_has_a_place(name):
    assert any(f"<!-- table {name} -->\n\n|" in text_of(page) for page in PAGES)


def test_every_page_is_in_the_contents():
    index = text_of("docs/index.md")
    pages = [str(Path(page).relative_to("docs").with_suffix("")) for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if page != "index" and f"\n{page}\n" not in index] == []


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 200


def test_the_readme_has_the_test_command():
    assert [line for line in text_of("README.md").splitlines() if line.endswith("python -m pytest")]


def test_what_may_change_on_resume_is_what_the_page_says():
    text = text_of("docs/understand/exact_resume.md")
    pattern = r"A run may be resumed with (.+?)\s+All other settings, (.+?)\s+included"
    ((may, may_not),) = re.findall(pattern, text, flags=re.S)
    # The page has words for these.
    groups = ["mesh", "log_every", "tracker", "eval_every", "eval_batches", "checkpoint", "probe"]
    groups += re.findall(r"`([\w.]+?)(?:\.\*)?`", may)
    known = settings.settings_of(train_config.TrainConfig)
    named = {group: {name for name in known if f"{name}.".startswith(f"{group}.")} for group in groups}
    assert all(named.values())
    assert set().union(*named.values()) == train_config.RESUMABLE
    assert set(re.findall(r"`(.+?)`", may_not)) <= known.keys() - train_config.RESUMABLE


def test_a_token_passes_at_most_twelve_files():
    walk = text_of("docs/understand/token_walk.md").split("## Follow one token")[1]
    numbers = re.findall(r"^(\d+)\. `(electra_jax/[\w/]+\.py)`", walk, flags=re.M)
    assert 0 < len(numbers) <= 12
    assert [int(number) for number, _ in numbers] == [*range(1, len(numbers) + 1)]


def test_the_afternoon_knows_how_long_its_files_are():
    page = text_of("docs/understand/afternoon.md")
    written = TABLES["with_line_counts"](re.sub(r"\| \d+ \|", "| |", page))
    for text, off in ((page, 0.2), (written, 0.11)):  # 5 lines of 49
        said = {file: int(count) for file, count in re.findall(r"^\| `(\S+)` \| (\d+) \|", text, flags=re.M)}
        lines = {file: len(text_of(file).splitlines()) for file in said}
        assert said == pytest.approx(lines, rel=off), "run: python docs/make_tables.py"
        files, total = re.findall(r"(\d+) files, about ([\d,]+) lines", text)[0]
        assert int(files) == len(said) == text.count("| `")
        assert int(total.replace(",", "")) == pytest.approx(sum(lines.values()), rel=0.05)


def test_error_messages_that_are_listed_exist():
    """The longest constant part of each message under "When it fails" is in a string of the package."""
    strings = [text for path in (ROOT / "electra_jax").rglob("*.py") for text in constants(path)]
    messages = re.findall(r"^(?:- |  )`([^`]+)`(?:, or)?$", text_of("docs/errors.md"), flags=re.M)
    assert len(messages) > 50
    for message in messages:
        parts = re.split(r"\.\.\.|\b[A-Z][A-Z0-9_]*\b", message)
        longest = max((part.strip() for part in parts), key=len)
        assert any(longest in text for text in strings), message


def constants(path: Path) -> list[str]:
    """The strings of a module; those of an f-string with a mark for each value."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_the_license_is_apache():
    assert text_of("LICENSE").lstrip().startswith("Apache License\n")
    assert len((ROOT / "LICENSE").read_bytes()) == 11358
