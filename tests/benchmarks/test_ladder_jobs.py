"""The ladder's jobs for real: a step of pre-training on a small text, then what is scored of it."""

import json

import frozen
import ladder
import ladder_jobs
import ladder_plan
import numpy as np
import pytest
from cli_runs import sst2_files
from ladder_jobs import Folders, Shape
from ladder_plan import ASSUMED, BAG_OF_WORDS, VARIANTS, Plan, Run

import electra_jax
from electra_jax.loading import run_checkpoint

RUN = Run("electra", 1e9, Shape(1, 64), 3e-3)


@pytest.fixture(scope="module")
def folders(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ladder")
    electra_jax.prepare(folder / "text", input=str(text_file), vocab_size=40)
    sst2_files(folder / "glue" / "SST-2")
    (folder / "word_order").mkdir()
    for split in ("train", "dev"):
        rows = [f"words in order {i}\twritten\norder in {i} words\tshuffled\n" for i in range(20)]
        (folder / "word_order" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    return Folders(str(folder / "text"), str(folder / "glue"), folder / "word_order", folder / "pairs", folder / "runs")


@pytest.mark.slow
def test_a_run_is_trained_fine_tuned_and_probed(folders, monkeypatch):
    monkeypatch.setattr(ladder_jobs, "VOCABULARY", 40)
    monkeypatch.setattr(ladder_plan, "TASKS", ("sst2",))
    plan = Plan({}, folders.runs, 1e14, assumed=ASSUMED)

    def work(job):
        result = folders.runs / "result.json"
        ladder.work({"name": job.name, **json.loads(json.dumps(job.settings))}, folders, result)
        return json.loads(result.read_text())

    pretraining = plan._pretrain(RUN)
    made = work(pretraining)
    assert pretraining.folder is not None
    assert pretraining.folder.is_dir()
    assert made["steps"] == 1
    assert made["heldout"][-1].keys() == {"step", "mlm_loss", "disc_loss", "disc_auc", "unigram_auc"}
    tuned = {
        system: work(plan._finetune(system, RUN.name, "sst2", 1e-3, (7, 8))) for system in ("electra", BAG_OF_WORDS)
    }
    varied = [work(plan._finetune("electra", RUN.name, "sst2", 1e-3, (7, 8), variant)) for variant in VARIANTS]
    for result in (*tuned.values(), *varied):
        assert result["seconds"] > 0
        assert result["metric"] == "accuracy"
        assert set(result["scores"]) == {"7", "8"}
    assert tuned["electra"] != tuned[BAG_OF_WORDS]
    probed = work(next(job for job in plan._score("electra", RUN.name) if job.settings["kind"] == "probe"))
    assert set(probed) == {"sst2", "word_order"}


@pytest.mark.slow
def test_a_mean_of_checkpoints_is_that_of_their_parameters(small_run):
    word = [frozen.load(small_run, averaged).encoder.params["embeddings"]["word"] for averaged in (1, 2)]
    first, second = (
        run_checkpoint.load_run_checkpoint(small_run, step).params["embeddings"]["word"] for step in (1, 2)
    )
    np.testing.assert_array_equal(word[0], second)
    np.testing.assert_allclose(word[1], (np.asarray(first) + np.asarray(second)) / 2, rtol=1e-6)
