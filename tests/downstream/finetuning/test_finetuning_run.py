import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from char_tokenizer import Letters
from cli_runs import ROOT
from tiny_models import network

import electra_jax
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.finetuning import job, kept, recipe, results, run
from electra_jax.downstream.finetuning.job import Data, Job
from electra_jax.downstream.tasks import files, registry
from electra_jax.downstream.tasks.task import BadRows, Rows
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.networks import Source
from electra_jax.modeling.batch import Batch
from electra_jax.runtime.progress import Progress

SETTINGS = {"seeds": 1, "epochs": 1, "batch_size": 4, "max_length": 10, "dropout": 0.0}


def config(file="glue", arg="task=sst2", **overrides):
    c = config_file.load(ROOT / "configs" / f"{file}.py", arg)
    c.update_from_flattened_dict({**SETTINGS, **{name.replace("__", "."): v for name, v in overrides.items()}})
    return recipe.resolve(c)


@pytest.fixture
def folder(tmp_path):
    """The first half of the alphabet is 0, the second 1."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("dev", 7)):
        letters = ["".join(chr(ord("a") + i) for i in rng.integers(0, 26, 5)) for _ in range(count)]
        lines = [f"{text}\t{int(text[0] > 'm')}" for text in letters]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n5\tabc\n9\tz\n")
    return tmp_path


def pretrained(positions):
    """BERT with one layer."""
    given = network(head=None, layers=1)
    table = given.params["embeddings"]["position"][:positions]
    params = {**given.params, "embeddings": {**given.params["embeddings"], "position": table}}
    config = dataclasses.replace(given.config, max_length=positions)
    return Pretrained(given._replace(config=config, params=params), None, Letters())


# As few tests as can be need a program of their own: compiling one takes longer than all else here. Batches are 16
# tokens long, so in each of them padding exceeds the table of positions.
GIVEN = pretrained(10)
WITHOUT_POSITIONS = GIVEN._replace(encoder=network("modernbert", head=None))


def broken(change):
    """GIVEN with another table of words."""
    params = GIVEN.encoder.params
    params = {**params, "embeddings": {**params["embeddings"], "word": change(params["embeddings"]["word"].copy())}}
    return GIVEN._replace(encoder=GIVEN.encoder._replace(params=params))


def finetune(folder, workdir, settings=None, get=lambda: GIVEN, digest="1", **options):
    return run.finetune_source(settings or config(), Source("a network", digest, get), str(folder), workdir, **options)


class Listening(Progress):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_scores_and_answers_are_written(folder, tmp_path):
    result = finetune(folder, tmp_path / "out")
    assert result == json.loads((tmp_path / "out" / results.SCORES).read_text())
    assert (result["task"], result["metric"]) == ("sst2", "accuracy")
    (seed,) = result["seeds"]
    assert seed["seed"] == 0
    assert seed["steps"] == 3
    assert len(seed["losses"]) == 1
    answers = (tmp_path / "out" / "answers" / "seed-0" / "dev.tsv").read_text().splitlines()
    truth = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    right = [line.split("\t")[1] == label for line, label in zip(answers[1:], truth, strict=True)]
    assert result["median"]["accuracy"] == pytest.approx(100 * np.mean(right))
    test = (tmp_path / "out" / "answers" / "seed-0" / "SST-2.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in test] == ["index", "5", "9"]


def test_examples_that_are_cut_are_counted(folder, tmp_path):
    progress = Listening()
    finetune(folder, tmp_path / "out", config(max_length=6), progress=progress)  # texts have 5 letters
    assert "sst2: cut to fit rows of 6 tokens: 12 of train, 7 of dev" in progress.lines
    assert not [line for line in progress.lines if "without text" in line]


def test_examples_without_text_are_counted(folder, tmp_path):
    with (folder / "train.tsv").open("a") as file:
        file.write("\t0\n  \t1\n")
    progress = Listening()
    finetune(folder, tmp_path / "out", progress=progress)
    assert "sst2: examples without text, which are used like others: 2 of train" in progress.lines


def test_classes_that_differ_by_case_or_spaces_are_named(folder):
    task = SimpleNamespace(name="table", kind="classification", labels=("a b", "A  b", "c"))
    data = Data(Rows([[1]], [1], np.zeros(1), {}), {}, {})
    progress = Listening()
    run._describe_data(Job(config(), task, None, GIVEN.encoder, None, data), progress)
    assert "table: 'a b' and 'A  b' are different classes, by spaces or case alone" in progress.lines


def test_config_and_workdir_are_checked_first(folder, tmp_path):
    invalid = config_file.load(ROOT / "configs" / "glue.py", "task=sst2")
    invalid.epochs = 0
    with pytest.raises(UserError, match=r"config\.epochs=0 is invalid: expected more than 0"):
        run.finetune(invalid, "nowhere", folder, tmp_path)
    for workdir in ("gs://bucket/run", Path("gs://bucket/run")):
        with pytest.raises(UserError, match=r"workdir gs:/+bucket/run is invalid: expected a local folder"):
            run.finetune(config(), "nowhere", folder, workdir)
    with pytest.raises(UserError, match="keep='last' is invalid: expected best or all or none"):
        run.finetune(config(), "nowhere", folder, tmp_path, keep="last")


def test_finished_seeds_are_not_trained_again(folder, tmp_path):
    first = finetune(folder, tmp_path / "out")
    assert finetune(folder, tmp_path / "out", get=lambda: pytest.fail("nothing was missing")) == first
    asked = []
    second = finetune(folder, tmp_path / "out", config(seeds=2), get=lambda: asked.append(1) or GIVEN)
    assert asked == [1]
    assert second["seeds"][0] == first["seeds"][0]
    values = [seed["scores"]["accuracy"] for seed in second["seeds"]]
    assert second["median"]["accuracy"] == np.median(values)
    assert (second["lowest"]["accuracy"], second["highest"]["accuracy"]) == (min(values), max(values))
    assert second["std"]["accuracy"] == pytest.approx(np.std(values, ddof=1))
    with pytest.raises(UserError, match=r"holds another fine-tuning .*epochs: 1 -> 2.*; use another folder"):
        finetune(folder, tmp_path / "out", config(epochs=2))
    with pytest.raises(UserError, match=r"holds another fine-tuning \(weights: '1' -> '2'\)"):
        finetune(folder, tmp_path / "out", digest="2")
    (folder / "dev.tsv").write_text("sentence\tlabel\nabc\t1\n")
    with pytest.raises(UserError, match=r"holds another fine-tuning \(data\.dev\.tsv: '.*' -> '.*'\)"):
        finetune(folder, tmp_path / "out")


def test_a_test_set_that_was_added_later_is_reported(folder, tmp_path):
    (folder / "test.tsv").rename(tmp_path / "aside.tsv")
    progress, seeds = Listening(), tmp_path / "out" / "seeds"
    finetune(folder, tmp_path / "out", progress=progress)
    (tmp_path / "aside.tsv").rename(folder / "test.tsv")
    finetune(folder, tmp_path / "out", config(seeds=2), progress=progress)
    finetune(folder, tmp_path / "out", tests=False, progress=progress)
    assert [line for line in progress.lines if "no predictions" in line] == [
        f"seed 0 finished before test was added, so there are no predictions for it; remove {seeds} to train again"
    ]


@pytest.mark.parametrize("text", ["{}", '{"seed": 1, "scores": {"accuracy": 1}}', '{"seed": 0, "scores": {}}'])
def test_a_damaged_seed_is_an_error(folder, tmp_path, text):
    finetune(folder, tmp_path / "out")
    (tmp_path / "out" / "seeds" / "0.json").write_text(text)
    with pytest.raises(UserError, match=r"seeds/0\.json is damaged: expected the scores of seed 0; remove it"):
        finetune(folder, tmp_path / "out")


def test_a_row_of_a_test_set_is_never_left_out(folder, tmp_path):
    (folder / "test.tsv").write_text("index\tsentence\n5\n")
    with pytest.raises(UserError, match=r"test\.tsv:2: 1 fields, .*; fix it: a leaderboard expects"):
        finetune(folder, tmp_path / "out", strict=False)


def test_a_folder_with_something_else_is_not_overwritten(folder, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"objective": {"name": "electra"}}')
    with pytest.raises(UserError, match="holds something other than a fine-tuning; use another folder"):
        finetune(folder, tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_text() == '{"objective": {"name": "electra"}}'
    finetune(folder, tmp_path / "out", config(seed=1))
    with pytest.raises(UserError, match=r"holds another fine-tuning \(epochs: 1 -> 2\)"):
        finetune(folder, tmp_path / "out", config(epochs=2))  # of a seed that is not done
    assert [seed["seed"] for seed in finetune(folder, tmp_path / "out", config(seeds=2))["seeds"]] == [0, 1]
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(UserError, match=r"holds something other than a fine-tuning \(scores.json\)"):
        finetune(folder, tmp_path / "out")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "log.txt").write_text("of the shell that started it")
    assert finetune(folder, tmp_path / "own")["seeds"]
    (tmp_path / "own" / "config.json").unlink()
    shutil.rmtree(tmp_path / "own" / "seeds")
    (tmp_path / "own" / "scores.json").write_text("mine")
    with pytest.raises(UserError, match=r"holds something other than a fine-tuning \(scores.json\)"):
        finetune(folder, tmp_path / "own")


def test_a_tfds_dataset_is_identified_by_its_name(folder, tmp_path, monkeypatch):
    finetune(folder, tmp_path / "out")
    digests = files.split_digests
    assert digests("tfds:a", ("train",), ()) != digests("tfds:b", ("train",), ())
    monkeypatch.setattr(files, "split_digests", lambda place, *others: digests("tfds:a", *others))
    with pytest.raises(UserError, match=r"holds another fine-tuning .*data"):
        finetune(folder, tmp_path / "out")


def test_parameters_that_are_not_finite_are_not_scored(folder, tmp_path):
    def in_unused_row(words):
        words[-1] = np.nan
        return words

    with pytest.raises(UserError, match="the parameters are not finite after the last step; lower"):
        finetune(folder, tmp_path / "out", get=lambda: broken(in_unused_row))
    assert not [*(tmp_path / "out" / "seeds").glob("*")]


def test_a_loss_that_is_not_finite_leaves_nothing_behind(folder, tmp_path):
    with pytest.raises(UserError, match="sst2 from a network: the loss is not finite from step 0 on; lower"):
        finetune(folder, tmp_path / "out", get=lambda: broken(lambda words: words * np.float32(np.nan)))
    finetune(folder, tmp_path / "out", config(epochs=2))


def test_padding_may_exceed_the_position_table(folder, tmp_path):
    with (folder / "train.tsv").open("a") as file:
        file.write("abcdefghijklm\t0\n")  # which makes the last batch a short one
        file.write("a\t0\n")  # with 13 positions of padding
    assert len(GIVEN.encoder.params["embeddings"]["position"]) == 10
    result = finetune(folder, tmp_path / "out")
    assert np.isfinite(result["seeds"][0]["losses"]).all()


def test_heads_compute_in_float32(folder):
    task = registry.make_task(config().task, str(folder))
    model = job.make_model(config(dtype="bfloat16"), task, GIVEN.encoder)
    ids = np.ones((1, 4), np.int32)
    outputs, params = jax.eval_shape(model.init_with_output, jax.random.key(0), Batch(ids, ids, ids))
    assert outputs["scores"].dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}


def test_the_dropout_is_that_of_the_fine_tuning_and_falls_on_attention_too(folder):
    """Whatever the rates were in pre-training."""
    task = registry.make_task(config().task, str(folder))
    encoder = dataclasses.replace(GIVEN.encoder.config.encoder, attention_dropout=0.0)
    network = GIVEN.encoder._replace(config=dataclasses.replace(GIVEN.encoder.config, encoder=encoder))
    tuned = job.make_model(config(dropout=0.3), task, network).config.encoder
    assert (tuned.dropout, tuned.attention_rate) == (0.3, 0.3)


def test_rows_that_cannot_be_used(folder, tmp_path):
    with (folder / "train.tsv").open("a") as file:
        file.write("abc\tmaybe\n")
    with pytest.raises(UserError, match=r"train\.tsv:14: label is 'maybe', expected 0 or 1"):
        finetune(folder, tmp_path / "out")
    assert not (tmp_path / "out" / "seeds").exists()
    progress = Listening()
    finetune(folder, tmp_path / "out", strict=False, progress=progress)
    assert [text for text in progress.lines if text.startswith("1 rows left out, the first ")]


def test_max_length_beyond_the_position_table_is_an_error(folder, tmp_path):
    message = r"config\.max_length=11 is invalid: the pre-trained encoder has 10 positions; use .*max_length=10"
    with pytest.raises(UserError, match=message):
        finetune(folder, tmp_path / "out", config(max_length=11))


def test_a_network_without_a_tokenizer(folder, tmp_path):
    with pytest.raises(UserError, match=r"a network has no tokenizer: expected its tokenizer\.json next to"):
        finetune(folder, tmp_path / "out", get=lambda: GIVEN._replace(tokenizer=None))


def test_fewer_examples_are_the_same_ones_for_every_seed(folder):
    task = registry.make_task(config().task, str(folder))
    some = [job.load_data(config(examples=5, seed=seed), task, Letters(), str(folder), BadRows()) for seed in (0, 1)]
    assert len(some[0].train.input_ids) == 5
    assert some[0].train.input_ids == some[1].train.input_ids


QUESTIONS = [
    {"id": "1", "question": "which", "answers": [{"text": "def", "answer_start": 4}]},
    {"id": "2", "question": "who", "answers": [], "is_impossible": True},
]
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "abc def ghi jkl", "qas": QUESTIONS}]}]})
SHORT = {"max_length": 32, "task__query": 8, "task__stride": 8, "shortest_bucket": 16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "arg", "name", "content", "settings", "metric", "answers"),
    [
        ("tags", "", "{}.txt", "abc B-X\nde I-X\nf O\n\ngh O\n", {}, "f1", "dev.txt"),
        ("squad", "version=2.0", "{}.json", SQUAD, SHORT, "f1", "dev.json"),
        ("squad", "version=2.0,head=paper", "{}.json", SQUAD, {**SHORT, "task__beam": 8}, "f1", "dev.json"),
        ("table", "", "{}.csv", "text,label\nabc,x\nd,y\nef,x\ngh,y\n", {}, "accuracy", "dev.tsv"),
        ("table", "", "{}.csv", "text,label\nabc,1\nd,2\n", {"task__kind": "regression"}, "spearman", "dev.tsv"),
    ],
)
def test_every_kind_of_task_from_its_files_to_scores(tmp_path, file, arg, name, content, settings, metric, answers):
    for split in ("train", "dev"):
        (tmp_path / name.format(split)).write_text(content)
    result = finetune(tmp_path, tmp_path / "out", config(file, arg, **settings), get=lambda: WITHOUT_POSITIONS)
    assert result["metric"] == metric
    assert np.isfinite(list(result["median"].values())).all()
    assert (tmp_path / "out" / "answers" / "seed-0" / answers).is_file()


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory):
    """How a seed ended, by what is set in its fine-tuning."""
    place = tmp_path_factory.mktemp("settings")
    letters = ["abcdefgh", "zyx", "mno", "nop", "bcd", "yza", "klm", "tuv"]
    for split in ("train", "dev"):
        lines = [f"{text}\t{int(text[0] > 'm')}" for text in letters]
        (place / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")

    def ended(**settings):
        name = "-".join(f"{name}={value}" for name, value in settings.items())
        return finetune(place, place / name, config(**{"epochs": 2, **settings}))["seeds"][0]

    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {"seed": 1},
        {"epochs": 3},
        {"examples": 4},
        {"batch_size": 2},
        {"max_length": 6},
        {"dropout": 0.5},
        {"dtype": "bfloat16"},
        {"optim__learning_rate": 1e-3},
        {"optim__layer_decay": 0.1},
        {"optim__reference_rates": True},
        {"optim__warmup": 0.9},
        {"optim__weight_decay": 10.0},
        {"optim__b1": 0.1},
        {"optim__b2": 0.1},
        {"optim__eps": 1.0},
        {"optim__clip_norm": 1e-6},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_every_setting_makes_a_difference(as_it_is, setting):
    base = {"optim__learning_rate": 3e-3}
    measured = "steps" if "epochs" in setting else "losses"  # which are as many as epochs were asked for
    assert as_it_is(**{**base, **setting})[measured] != as_it_is(**base)[measured]


@pytest.fixture(scope="module")
def with_pieces():
    """A network whose tokenizer can be written as tokenizer.json."""
    lines = ["".join(chr(ord("a") + (i * n) % 26) for i in range(9)) for n in range(1, 99)]
    return GIVEN._replace(
        tokenizer=vocabulary_training.train(lines, CorpusConfig(vocab_size=34, character_coverage=1.0))
    )


def models(workdir):
    return sorted(path.name for path in (workdir / "models").glob("*"))


def tuning(folder, pretrained, workdir, monkeypatch, accuracies):
    """A function that fine-tunes with settings, and keeps the best model; seeds score these accuracies."""
    evaluate = job._evaluate

    def with_scores(*args):
        return [({"accuracy": next(accuracies)}, *rest) for _, *rest in evaluate(*args)]

    monkeypatch.setattr(job, "_evaluate", with_scores)
    return lambda **settings: finetune(folder, workdir, config(**settings), get=lambda: pretrained, keep="best")


def test_the_best_seed_s_model_is_kept(folder, with_pieces, tmp_path, monkeypatch):
    tune = tuning(folder, with_pieces, tmp_path / "out", monkeypatch, iter([50.0, 80.0, 80.0, 20.0, 90.0]))
    assert tune()["model"] == "models/seed-0"
    assert tune(seeds=3)["model"] == "models/seed-1"  # the first of equal ones
    assert models(tmp_path / "out") == ["seed-1"]
    assert tune(seeds=4)["model"] == "models/seed-1"
    assert tune(seeds=5)["model"] == "models/seed-4"
    assert models(tmp_path / "out") == ["seed-4"]
    loaded = electra_jax.load(tmp_path / "out")
    assert loaded.scores == {"accuracy": 90.0}
    answers = (tmp_path / "out" / "answers" / "seed-4" / "dev.tsv").read_text().splitlines()[1:]
    texts = [line.split("\t")[0] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    assert [label.label for label in loaded.predict(texts)] == [line.split("\t")[1] for line in answers]


def test_of_equal_seeds_the_first_one_s_model_is_kept_whenever_it_was_trained(
    folder, with_pieces, tmp_path, monkeypatch
):
    tune = tuning(folder, with_pieces, tmp_path / "out", monkeypatch, itertools.repeat(0.0))
    assert tune(seed=1)["model"] == "models/seed-1"
    assert tune(seeds=2)["model"] == "models/seed-0"
    assert models(tmp_path / "out") == ["seed-0"]


def test_all_models_or_none_are_kept(folder, with_pieces, tmp_path):
    result = finetune(folder, tmp_path / "all", config(seeds=2), get=lambda: with_pieces, keep="all")
    assert models(tmp_path / "all") == ["seed-0", "seed-1"]
    best = max(result["seeds"], key=lambda seed: seed["scores"]["accuracy"])
    assert electra_jax.load(tmp_path / "all").scores == best["scores"]
    assert electra_jax.load(tmp_path / "all" / "models" / "seed-1").scores == result["seeds"][1]["scores"]
    result = finetune(folder, tmp_path / "none", config(seeds=2), get=lambda: with_pieces, keep="none")
    assert (result["model"], models(tmp_path / "none")) == (None, [])


def test_a_seed_that_was_stopped_before_its_result_is_kept_again(folder, with_pieces, tmp_path, monkeypatch):
    def stop(results, seed, result):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(results.Results, "write_seed", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(folder, tmp_path / "out", get=lambda: with_pieces, keep="best")
    assert models(tmp_path / "out") == ["seed-0"]
    (tmp_path / "out" / "models" / ".seed-0.0123abcd.partial").mkdir()  # of a call that was killed
    (tmp_path / "out" / "models" / "seed-7").mkdir()  # not the best any more
    assert finetune(folder, tmp_path / "out", get=lambda: with_pieces, keep="best")["model"] == "models/seed-0"
    assert models(tmp_path / "out") == ["seed-0"]
    assert electra_jax.load(tmp_path / "out").predict("abc").label in ("0", "1")


def test_a_model_that_cannot_be_written_is_reported(folder, tmp_path, monkeypatch):
    """Its tokenizer is none that transformers could read."""
    progress = Listening()

    def refuse(*args):
        raise UserError("tokenizer.json cannot express it")

    monkeypatch.setattr(kept, "write", refuse)
    assert finetune(folder, tmp_path / "out", keep="best", progress=progress)["model"] is None
    assert "the model of seed 0 is not kept: tokenizer.json cannot express it" in progress.lines
