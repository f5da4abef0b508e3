"""The documentation agrees with the code: commands, settings, paths and links that it names exist."""

import re
import runpy
from pathlib import Path

import pytest
from cli_runs import ROOT

from electra_jax import __main__ as command_line
from electra_jax import configs, train_config
from electra_jax.config import settings


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_the_reference_of_settings_is_up_to_date():
    written = runpy.run_path(str(ROOT / "docs" / "make_settings.py"))
    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), "run: python docs/make_settings.py"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_paths_and_links_exist(page):
    text = text_of(page)
    paths = re.findall(r"\b((?:electra_jax|tests|configs|benchmarks|docs|launch)/[\w./]+\.\w+)", text)
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    missing = [name for name in dict.fromkeys([*paths, *links]) if not (ROOT / name).exists()]
    assert paths
    assert not missing


def test_commands_of_the_readme_exist():
    text = text_of("README.md")
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text.split("## Use it")[1].split("###")[0], flags=re.M))
    assert list(table) == list(command_line.COMMANDS)
    assert set(re.findall(r"electra-jax ([a-z]+)", text)) <= {*command_line.COMMANDS}
    assert set(re.findall(r"python -m electra_jax\.(\w+)", text)) == {"train"}


def test_configs_and_settings_of_the_readme_exist():
    text = text_of("README.md")
    assert set(re.findall(r"--config=(?:configs/)?(\w+)", text)) <= {*dir(configs)}
    known = {*settings.settings_of(train_config.TrainConfig)}
    finetuning = settings.flatten(configs.table()) | settings.flatten(configs.squad(version=2.0))
    named = set(re.findall(r"(?:--|`)config\.([a-z_0-9.]*[a-z_0-9])", text)) - {"json"}
    assert named - known - finetuning.keys() == set()


def test_what_may_change_on_resume_is_what_the_readme_says():
    text = text_of("README.md")
    ((may, may_not),) = re.findall(
        r"A run may be resumed with (.+?) All other settings, (.+?) included", text, flags=re.S
    )
    known = settings.settings_of(train_config.TrainConfig)
    for name in re.findall(r"`([\w.]+?)(?:\.\*)?`", may):
        assert all(each.resumable for each in known.values() if f"{each.name}.".startswith(f"{name}."))
    assert not any(known[name].resumable for name in re.findall(r"`(.+?)`", may_not))


def test_the_test_command_is_where_the_checks_look_for_it():
    assert [line for line in text_of("README.md").splitlines() if line.endswith("python -m pytest")]


def test_the_way_of_a_token_has_at_most_twelve_files():
    walk = text_of("README.md").split("### Follow one token")[1]
    numbers = re.findall(r"^(\d+)\. `(electra_jax/[\w/]+\.py)`", walk, flags=re.M)
    assert 0 < len(numbers) <= 12
    assert [int(number) for number, _ in numbers] == [*range(1, len(numbers) + 1)]


def test_the_license_is_apache():
    assert text_of("LICENSE").lstrip().startswith("Apache License\n")
    assert len(Path(ROOT / "LICENSE").read_bytes()) == 11358
