import math

import jax
import numpy as np
import pytest
from char_tokenizer import Letters
from cli_runs import arrays, logged, quiet, small_config, sst2_files
from tiny_models import network

from electra_jax import train
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning.probe import Probe
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.model import Model
from electra_jax.train_config import ProbeConfig


@pytest.fixture
def folder(tmp_path):
    return sst2_files(tmp_path)


def settings(folder):
    return ProbeConfig(every=1, task="sst2", data_dir=str(folder), examples=6, epochs=1)


@pytest.mark.slow
def test_the_same_encoder_scores_the_same(folder):
    encoder = network("modernbert", head=None)
    broken = encoder._replace(params=jax.tree.map(lambda x: x * np.float32(np.nan), encoder.params))
    whole, nans = (Model("a test", Pretrained(each, None, Letters()), Letters()) for each in (encoder, broken))
    probe = Probe(settings(folder), 16, Letters())
    first = probe(1, whole)
    assert set(first) == {"probe_sst2_accuracy"}
    assert first == probe(2, whole)
    assert math.isnan(probe(3, nans)["probe_sst2_accuracy"])


@pytest.mark.slow
def test_a_run_with_probes_is_the_run_without(folder, text_file, tmp_path):
    probe = {"probe__every": 2, "probe__task": "sst2", "probe__data_dir": str(folder), "probe__examples": 6}
    for name, given in (("with", probe), ("without", {})):
        config = small_config(text_file, steps=3, eval_batches=1, checkpoint__every=3, **given)
        train.train(config, tmp_path / name, quiet())
    probed = [line["step"] for line in logged(tmp_path / "with") if "probe_sst2_accuracy" in line]
    assert probed == [2, 3]
    before, after = (arrays(tmp_path / name, 3) for name in ("without", "with"))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_bad_row_is_no_reason_to_name_an_option_of_finetune(folder):
    with (folder / "train.tsv").open("a") as file:
        file.write("a\t7\n")
    with pytest.raises(UserError, match=r"train\.tsv:\d+: label is '7', expected 0 or 1; fix it$"):
        Probe(settings(folder), 16, Letters())


def test_files_are_asked_for_before_the_run_begins(folder, text_file, tmp_path):
    with pytest.raises(UserError, match=r"config\.probe\.every=1 needs the files of cola; set config\.probe\.data_dir"):
        train.train(small_config(text_file, probe__every=1), tmp_path, quiet())
