"""Damaged corpora, Hugging Face directories and runs: one line or a result, never other parameters."""

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import zstandard
from cli_runs import arrays, small_config
from fuzzing import Fuzz

from electra_jax.commands import detect, export, prepare, report
from electra_jax.config.errors import EXIT_USER_ERROR, UserError
from electra_jax.data import vocabulary_training
from electra_jax.loading.huggingface import directory

pytestmark = pytest.mark.night


def tar_of(content):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, begin in enumerate(range(0, len(content), 4000)):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(content[begin : begin + 4000])
            archive.addfile(info, io.BytesIO(content[begin : begin + 4000]))
    return out.getvalue()


def zip_of(content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, begin in enumerate(range(0, len(content), 4000)):
            archive.writestr(f"{number}.txt", content[begin : begin + 4000])
    return out.getvalue()


KINDS = {
    "txt": bytes,
    "txt.gz": gzip.compress,
    "txt.xz": lzma.compress,
    "txt.bz2": bz2.compress,
    "txt.zst": zstandard.ZstdCompressor().compress,
    "txt.tar": tar_of,
    "txt.zip": zip_of,
}


def test_corpora(request, text_file, tmp_path):
    fuzz = Fuzz(request, "corpora", tmp_path)
    text = text_file.read_bytes()[:20_000]
    lines = b"".join(json.dumps({"text": part}).encode() + b"\n" for part in text.decode().split("\n\n"))
    for case in fuzz:
        kind, content = fuzz.random.choice(
            [(kind, text) for kind in KINDS] + [("jsonl" + kind[3:], lines) for kind in KINDS]
        )
        inside = fuzz.random.random() < 0.5
        compress = KINDS["txt" + kind.removeprefix("jsonl").removeprefix("txt")]
        data = compress(fuzz.mutate(content)) if inside else fuzz.mutate(compress(content))
        path, out = tmp_path / f"corpus.{kind}", tmp_path / "out"
        path.write_bytes(data)
        options = ("--vocab_size=40", "--heldout_fraction=.1", "--workers=1")
        fuzz.check(case, prepare.main, [f"--input={path}", f"--output={out}", *options], (len(data), data[:80]))
        shutil.rmtree(out, ignore_errors=True)
        path.unlink()


def test_models(request, tmp_path):
    fuzz = Fuzz(request, "models", tmp_path)
    lines = ["the model reads a line of text and says which word was replaced"] * 20
    pieces = vocabulary_training.train(lines, small_config(data__vocab_size=28).data)
    directory.write(tmp_path / "whole", tiny_models.network(), "discriminator_head", pieces, "")
    for case in fuzz:
        model = Path(shutil.copytree(tmp_path / "whole", tmp_path / "model"))
        path = fuzz.random.choice(sorted(model.iterdir()))
        if path.name == "config.json" and fuzz.random.random() < 0.5:
            described = json.loads(path.read_text())
            name = fuzz.random.choice(list(described))
            described[name] = fuzz.random.choice((None, [], {}, -1, 0, 1e308, 10**18, 10**400, "x", True, float("nan")))
            what = (name, str(described[name])[:30])
            path.write_text(json.dumps(described))
        else:
            path.write_bytes(fuzz.mutate(path.read_bytes()))
            what = path.name
        fuzz.check(case, detect.main, [f"--model={model}", "the model reads a line"], what)
        shutil.rmtree(model)


def test_runs(request, small_run, tmp_path):
    """A checkpoint that is damaged is refused, or has the same bits; other damaged files make a page or a line."""
    fuzz = Fuzz(request, "runs", tmp_path)
    wanted = arrays(small_run, 2)
    for case in fuzz:
        run = Path(shutil.copytree(small_run, tmp_path / "copy"))
        in_checkpoint = fuzz.random.random() < 0.6
        files = sorted(
            path for path in run.rglob("*") if path.is_file() and ("checkpoints/2/" in str(path)) == in_checkpoint
        )
        path = fuzz.random.choice(files)
        name = str(path.relative_to(run))
        path.write_bytes(fuzz.mutate(path.read_bytes()))
        if in_checkpoint:
            try:
                found = arrays(run, 2)
            except UserError as error:
                found, text = {}, str(error)
                fuzz.ended[EXIT_USER_ERROR] += 1
            except Exception as error:
                raise AssertionError(fuzz.told(case, name, f"{type(error).__name__}: {error}"[:2000])) from error
            else:
                text = ""
                fuzz.ended[0] += 1
            assert "\n" not in text, fuzz.told(case, name, text)
            for key, value in found.items():
                np.testing.assert_array_equal(value, wanted[key], err_msg=fuzz.told(case, (name, key)))
        else:
            fuzz.check(case, report.main, [f"--runs={run}", f"--output={tmp_path}/page.html", "--samples=0"], name)
            fuzz.check(case, export.main, [f"--workdir={run}", f"--output={tmp_path}/exported"], name)
            shutil.rmtree(tmp_path / "exported", ignore_errors=True)
        shutil.rmtree(run)
