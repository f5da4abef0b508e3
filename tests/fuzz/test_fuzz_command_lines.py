"""Command lines with mistakes: one line or a result, and what they read is not changed."""

import importlib
import shutil
from pathlib import Path

import pytest
from cli_runs import ROOT, sst2_files
from fuzzing import NUMBERS, STRINGS, Fuzz, contents

pytestmark = pytest.mark.night

# Where a mutated line is valid it is carried out, so these lines do not get far: there is no such text, or no such run.
# `--processes` and `--coordinator` are left as they are: with valid values JAX may end the process.
LINES = {
    "train": ["--config=tiny:runlocal", "--config.data.input={none}", "--workdir={out}", "--config.steps=2"],
    "prepare": ["--input={text}", "--output={out}", "--vocab_size=40", "--heldout_fraction=.1", "--workers=1"],
    "finetune": ["--config=glue:task=sst2,runlocal", "--init_from={none}", "--data_dir={sst2}", "--workdir={out}"],
    "curves": ["--runs={none}", "--tasks=sst2", "--data_dir={glue}", "--output={out}", "--points=1"],
    "report": ["--runs={run}", "--output={out}", "--samples=0"],
    "export": ["--workdir={none}", "--output={out}", "--step=1"],
    "detect": ["--model={none}", "a text"],
    "flops": ["--config=base", "--device=H200", "--chips=8", "--mfu=0.4", "--json"],
}
EXTRA = (
    "--help",
    "--help-config",
    "--config.model.layers",
    "--config.",
    "--",
    "-x",
    "word",
    "--step",
    "--config=tiny:x",
)


def mutated(fuzz: Fuzz, line: list[str], folders: list[str]) -> list[str]:
    """A line with one or two arguments that are lost, repeated, moved, or have another value."""
    draw, line = fuzz.random, list(line)
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(len(line)) if line else 0
        name = line[at].partition("=")[0] if line else "--x"
        value = draw.choice((draw.choice(NUMBERS), draw.choice(STRINGS), draw.choice(folders)))
        match draw.randrange(6):
            case 0:
                line[at : at + 1] = []
            case 1:
                line.insert(at, draw.choice(EXTRA))
            case 2:
                line[at : at + 1] = [name]
            case 3:
                line.insert(draw.randrange(len(line) + 1), line[at] if line else name)
            case 4:
                line[at : at + 1] = [f"{name[:-1]}={value}"]
            case _:
                line[at : at + 1] = [f"{name}={value}"]
    return line


def test_command_lines(request, small_run, text_file, tmp_path):
    fuzz = Fuzz(request, "command_lines", tmp_path)
    glue = tmp_path / "glue"
    sst2_files(glue / "SST-2")
    places = {
        "text": text_file,
        "run": Path(shutil.copytree(small_run, tmp_path / "run")),
        "glue": glue,
        "sst2": glue / "SST-2",
        "none": tmp_path / "none",
    }
    before = contents(places["run"]), contents(glue), text_file.read_bytes()
    for case in fuzz:
        name = fuzz.random.choice(list(LINES))
        out = tmp_path / f"out-{case}"
        filled = [part.format(out=out, **places) for part in LINES[name]]
        line = mutated(
            fuzz, filled, [str(places["run"]), str(places["none"]), str(glue), str(ROOT / "configs" / "tiny.py")]
        )
        if "--config.data.input" not in " ".join(line) and name == "train":
            continue  # it would train on the default text
        if "--workdir=" not in " ".join(line) and name in ("train", "finetune"):
            line.append(f"--workdir={out}")  # not runs/NAME in the current folder
        fuzz.check(case, importlib.import_module(f"electra_jax.commands.{name}").main, line)
        assert (contents(places["run"]), contents(glue), text_file.read_bytes()) == before, fuzz.told(
            case, (name, line)
        )
