"""Preparation, fine-tuning and curves that are killed at any moment end with the files of an uninterrupted command."""

from pathlib import Path

import pytest
from cli_runs import ROOT, contents, electra_jax_command, prepare_arguments, sst2_files
from kills import Storm, alone

pytestmark = pytest.mark.night


def check(storm: Storm, *patterns: str) -> None:
    """Compares all files that match; all by default."""
    wanted = contents(storm.uninterrupted(), *patterns)
    assert wanted
    for workdir in storm.trials():
        found = contents(workdir, *patterns)
        differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        assert not differing, storm.told(f"differing: {sorted(differing)}")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with the files of a small SST-2, as curves wants it."""
    folder = tmp_path_factory.mktemp("tasks")
    sst2_files(folder / "SST-2")
    return folder


def test_prepare(request, text_file, tmp_path):
    """Also while the processes that a killed one started are still at work."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{number}. {text_file.read_text()}" for number in range(40)))

    def argv(output: Path) -> list[str]:
        return electra_jax_command(*prepare_arguments(text, output, "--workers=2", "--model_type=bpe"))

    check(Storm(request.config, "prepare", alone(argv), tmp_path))


def test_finetune(request, small_run, tasks, tmp_path):
    options = (f"--config={ROOT}/configs/glue.py:task=sst2,runlocal", "--config.seeds=2", "--config.epochs=2")

    def argv(workdir: Path) -> list[str]:
        folders = (f"--init_from={small_run}", f"--data_dir={tasks / 'SST-2'}", f"--workdir={workdir}")
        return electra_jax_command("finetune", *options, *folders)

    check(Storm(request.config, "finetune", alone(argv), tmp_path))


def test_curves(request, small_run, tasks, tmp_path):
    def argv(output: Path) -> list[str]:
        options = ("--config.seeds=1", "--config.epochs=1", "--config.batch_size=4", "--paper=false")
        folders = (f"--data_dir={tasks}", f"--output={output}")
        return electra_jax_command("curves", "--runs", str(small_run), "--tasks=sst2", *folders, *options)

    check(Storm(request.config, "curves", alone(argv), tmp_path), "*.jsonl", "*.md", "scores.json", "seeds/*")
