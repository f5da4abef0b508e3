"""What is installed: the wheel, the source archive and an editable install work outside the checkout."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_string
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_runs import ROOT

from electra_jax import configs
from electra_jax.config import config_file
from electra_jax.config.errors import UserError

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Names of folders at the root of a checkout that are no part of what is built.
_NOT_BUILT = (".*", "__pycache__", "build", "*.egg-info", "runs", "tests", "benchmarks", "docs", "venv")
# Whether this environment's setuptools can build the package: older ones do not know license expressions.
SETUPTOOLS = importlib.util.find_spec("setuptools") and int(version("setuptools").partition(".")[0]) >= 77
_PYTHON_NAMES = ("PYTHONPATH", "PYTHONHOME")


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that does not see this checkout.

    Raises:
      AssertionError: the command fails; its output is in the message.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _PYTHON_NAMES}
    environment |= {"JAX_PLATFORMS": "cpu", "COLUMNS": "120"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str | Path, python: Path | None = None, cwd: Path) -> str:
    """Calls pip for `python`, which builds with this environment's setuptools where it has one."""
    target = ["--python", python] if python else []
    isolation = ["--no-build-isolation"] if SETUPTOOLS else []
    return run(
        sys.executable, "-m", "pip", *target, arguments[0], "-q", "--no-deps", *isolation, *arguments[1:], cwd=cwd
    )


def environment(folder: Path) -> Path:
    """Python of a fresh environment that has this one's packages, except electra_jax."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder).strip())
    # Path files in a folder that is named in a path file are not read: an editable install there has no effect.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def clone(folder: Path) -> Path:
    """A copy of this checkout in `folder`, named as a clone is. Building leaves files behind, so it is a copy."""
    copy = folder / "electra_jax"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_BUILT))
    (copy / "runs").mkdir()
    return copy


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return clone(tmp_path_factory.mktemp("parent"))


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", checkout, "--wheel-dir", folder, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Python of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    python = environment(folder)
    pip("install", wheel, python=python, cwd=folder)
    return python


CODE = """
import sys
import electra_jax
assert "jax" not in sys.modules, "import electra_jax imports jax"
import electra_jax.configs
assert "jax" not in sys.modules, "import electra_jax.configs imports jax"
print(electra_jax.__file__)
from electra_jax.config import config_file
assert electra_jax.configs.tiny(objective="mlm") == config_file.load("tiny", "objective=mlm")
assert config_file.load("base", "runlocal").steps == 12
"""


@pytest.mark.slow
def test_a_wheel_works_in_an_empty_folder(installed, tmp_path):
    usage = run(installed, "-m", "electra_jax", "--help", cwd=tmp_path)
    assert usage.startswith("usage: electra-jax SUBCOMMAND")
    assert run(installed.parent / "electra-jax", "--help", cwd=tmp_path) == usage
    counted = run(installed.parent / "electra-jax", "flops", "--config=tiny:objective=mlm", cwd=tmp_path)
    assert "FLOP" in counted
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_wheel_has_the_configs_the_license_and_the_metadata(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = message_from_string(files.read(f"{info}/METADATA").decode())
        assert files.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        for path in (ROOT / "configs").glob("*.py"):
            assert files.read(f"electra_jax/configs/{path.name}") == path.read_bytes()
    assert {name.split("/")[0] for name in names} == {"electra_jax", info}
    assert "electra_jax/py.typed" in names
    assert (metadata["Version"], metadata["License-Expression"]) == (PROJECT["version"], "Apache-2.0")
    assert metadata["Author"] == "electra_jax contributors"
    assert metadata.get_all("Project-URL") is None
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_a_wheel_can_be_built_from_the_source_archive(checkout, wheel, tmp_path):
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    if not SETUPTOOLS:
        pytest.skip("needs setuptools 77 or later, which is in the extra dev")
    run(sys.executable, "-c", build, tmp_path, cwd=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    pip("wheel", archive, "--wheel-dir", tmp_path, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(tmp_path / wheel.name) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


@pytest.mark.slow
def test_an_editable_install_works_in_the_folder_above_the_clone(tmp_path):
    checkout = clone(tmp_path)
    python = environment(tmp_path / "venv")
    pip("install", "-e", checkout, python=python, cwd=tmp_path)
    # What is edited at the top is what runs.
    tiny = checkout / "configs" / "tiny.py"
    tiny.write_text(tiny.read_text().replace("config.steps = 1060", "config.steps = 7"))
    # The clone is a folder named electra_jax in the current directory, which must not hide the package.
    place, steps = run(python, "-c", f"{CODE}print(electra_jax.configs.tiny().steps)", cwd=checkout.parent).split()
    assert (Path(place), steps) == (checkout / "electra_jax" / "__init__.py", "7")
    assert "usage: electra-jax" in run(python, "-m", "electra_jax", "--help", cwd=checkout.parent)


@pytest.mark.slow
def test_a_wheel_works_in_the_folder_above_the_clone(checkout, installed):
    """Where a folder named electra_jax is not the package."""
    place = Path(run(installed, "-c", CODE, cwd=checkout.parent).strip())
    assert installed.parent.parent in place.parents


def test_configs_are_functions_of_their_arguments():
    assert dir(configs) == sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py"))
    assert configs.tiny() == config_file.load(ROOT / "configs" / "tiny.py")
    given = configs.tiny(objective="mlm", runlocal=True)
    assert given == config_file.load("tiny", "objective=mlm,runlocal")
    assert given.objective.name == "mlm"
    assert configs.tiny(runlocal=False) == configs.tiny()
    assert configs.squad(version=2.0).task.name == "squad2"
    assert configs.base.__name__ == "base"
    assert configs.base.__doc__.startswith("ELECTRA-Base as in the paper")


def test_an_unknown_config_or_argument_is_refused():
    with pytest.raises(
        AttributeError, match="no config 'huge': expected one of babylm, base, budget, deberta_v3, glue"
    ):
        configs.huge  # noqa: B018
    with pytest.raises(UserError, match="config argument 'runlokal' is unknown"):
        configs.tiny(runlokal=True)


def test_config_files_cannot_be_imported_in_the_place_of_the_functions():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("electra_jax.configs.tiny")
    assert callable(configs.tiny)


def test_the_citation_has_the_version_and_the_license_of_the_package():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {PROJECT['version']}" in lines
    assert f"license: {PROJECT['license']}" in lines
