"""The model in models/ answers as the README shows, and is small enough for a repository."""

import doctest
import json
import re

import numpy as np
import pytest
import tokenizers
from cli_runs import ROOT

import electra_jax
from electra_jax.data import proof
from electra_jax.loading.huggingface import tokenizer_files

FOLDER = ROOT / "models" / "english-5m"
MOST_BYTES = 32 << 20  # history keeps every copy


@pytest.mark.parametrize("page", ["README.md", "docs/reference/models.md"])
def test_it_answers_as_the_pages_show(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"^```py\n(>>> .*?)^```$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    assert any("models/english-5m" in block for block in blocks)
    for number, block in enumerate(blocks):
        test = doctest.DocTestParser().get_doctest(block, {}, f"{page}, block {number}", page, 0)
        assert doctest.DocTestRunner().run(test).failed == 0


def test_it_answers_as_the_notebook_shows(capsys):
    """The cells between the loading of the model and the count of FLOPs print."""
    cells = json.loads((ROOT / "docs" / "start" / "front_door.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    first, end = (next(i for i, text in enumerate(sources) if name in text) for name in ("load(", "count_flops("))
    names = {"electra_jax": electra_jax}
    for cell, source in zip(cells[first:end], sources[first:end], strict=True):
        if cell["cell_type"] == "code":
            exec(source, names)
            assert capsys.readouterr().out == "".join(text for each in cell["outputs"] for text in each["text"])


def test_it_is_an_export_of_a_few_megabytes():
    assert {folder.name for folder in FOLDER.iterdir()} == {"discriminator", "encoder", "generator"}
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    model = electra_jax.load(FOLDER)
    assert model.notes == ()
    alone = electra_jax.load(FOLDER / "encoder")
    np.testing.assert_array_equal(model.encode("a line of text"), alone.encode("a line of text"))


@pytest.mark.parametrize("name", ["discriminator", "encoder", "generator"])
def test_other_libraries_read_its_texts_alike(name):
    model = tokenizers.Tokenizer.from_file(str(FOLDER / name / "tokenizer.json"))
    ours = electra_jax.load(FOLDER / name).tokenizer
    tokenizer_files.check(ours, model, [*proof.lines(ours), "rare\x0bwhite \x1cspace\x85 \u2003"])


def test_its_cards_name_no_folder_of_the_machine_that_made_it():
    for card in FOLDER.glob("*/README.md"):
        text = card.read_text(encoding="utf-8")
        assert ("## Scores after fine-tuning" in text) == (card.parent.name != "generator")
        assert not re.search(r"[\"'`]/(tmp|home|root|work|data)\b", text), card
