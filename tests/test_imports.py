"""The layers of the package and the direction of its imports, read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ROOT

import electra_jax

PACKAGE = ROOT / "electra_jax"
# From the top down: a module imports modules of its own line and of lines below it (docs/understand/token_walk.md).
LAYERS = (
    ("__main__",),
    ("commands",),
    ("report",),
    ("models",),
    ("train",),
    ("train_setup",),
    ("downstream",),
    ("loading",),
    ("metric_log",),
    ("planning",),
    ("flops",),
    ("evaluate",),
    ("step",),
    ("saved_config",),
    ("train_config",),
    ("guard", "optim"),
    ("objectives",),
    ("data",),
    ("modeling",),
    ("metrics",),
    ("runtime",),
    ("config",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
WITHOUT_JAX = (
    *("electra_jax", "electra_jax.configs", "electra_jax.__main__"),
    *("electra_jax.data.local_runner", "electra_jax.data.pipeline"),
)


def modules() -> dict[str, Path]:
    """Every module of the package, `data.tokenizer`, with its file; configs are not part of it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "configs":
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports; those under `if __name__ == "__main__"` and for types aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and (
            "__name__" in ast.unparse(node.test) or "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "electra_jax":
            base = (node.module or "").removeprefix("electra_jax").lstrip(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".lstrip(".")
                yield name if name in MODULES else base
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("electra_jax.") for a in node.names if a.name.startswith("electra_jax."))


def test_a_run_that_starts_from_nothing_imports_no_reader_of_models():
    code = "import sys, electra_jax.train; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "electra_jax.loading.samples" in loaded
    others = ("loading.model", "loading.networks", "loading.warm_start", "loading.huggingface")
    others += ("data.token_clusters", "data.vocabulary", "data.vocabulary_training", "downstream", "planning", "report")
    assert not {f"electra_jax.{name}" for name in others} & set(loaded)


EDGES = {name: set(imports(path)) - {""} for name, path in MODULES.items()}


def test_every_module_is_in_a_room():
    assert {name.split(".")[0] for name in MODULES} - {"__init__"} == set(RANK)


@pytest.mark.parametrize("name", sorted(EDGES))
def test_imports_point_down(name):
    if name == "__init__":
        return
    layer = name.split(".")[0]
    up = {each for each in EDGES[name] if RANK[each.split(".")[0]] < RANK[layer]}
    assert not up, f"{name} imports from a layer above it: {up}"


def test_no_circle():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path, name))}"
        if name not in done:
            for each in sorted(EDGES.get(name, ())):
                visit(each, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_nobody_imports_commands():
    assert not {name for name, targets in EDGES.items() if any(each.split(".")[0] == "commands" for each in targets)}


def test_no_name_of_the_front_door_is_a_module_too():
    assert not set(electra_jax.__all__) - {"configs"} & set(RANK)


def test_the_front_door_opens():
    assert set(electra_jax.__all__) <= set(dir(electra_jax))
    for name in electra_jax.__all__:
        assert getattr(electra_jax, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        electra_jax.lode  # noqa: B018 - raises


@pytest.mark.parametrize("module", WITHOUT_JAX)
def test_imported_without_jax(module):
    code = f"import sys, {module}; print([name for name in ('jax', 'flax', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() in ("[]", "['rich']")


def test_files_are_short():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: count for name, count in lines.items() if count > 400}
