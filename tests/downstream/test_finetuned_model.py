"""Fine-tuned models: what is written is read, and what they say of texts is what their task answers."""

import dataclasses
import functools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import network, random_like, same

import electra_jax
from electra_jax.config.errors import UserError
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import job, kept, multi_seed, recipe, results
from electra_jax.downstream.finetuning.kept import Kept
from electra_jax.downstream.predictions import Answer, Label, Labels, TaggedWord
from electra_jax.downstream.tasks import custom_table, glue, registry
from electra_jax.downstream.tasks.conll import Sentence
from electra_jax.downstream.tasks.sentences import Example
from electra_jax.downstream.tasks.tagging import Tagging
from electra_jax.loading.huggingface import directory, hf_config
from electra_jax.modeling.batch import Batch

WORDS = ["ada", "lives", "in", "oslo", "and", "ben", "saw", "the", "old", "harbour", "there"]
TEXTS = ["ada lives in oslo", "the old harbour", "", "ben saw ada and the old harbour in oslo there"]
FACTS = {"seed": 3, "scores": {"accuracy": 75.0}, "init_from": "runs/mine"}


@pytest.fixture(scope="module")
def pieces():
    lines = [" ".join(WORDS[n % 11 :] + WORDS[: n % 7]) for n in range(200)]
    return vocabulary_training.train(lines, CorpusConfig(vocab_size=30, character_coverage=1.0))


def task_and_config(name, **settings):
    config = recipe.make("table" if name in ("numbers", "classes", "topics") else name)
    config.task.update({"kind": "multilabel", "class_threshold": 0.4} if name == "topics" else {})
    config.update_from_flattened_dict({"max_length": 16, "dropout": 0.1, **settings})
    config = recipe.resolve(config)
    if name in ("classes", "topics"):
        return custom_table.restore_task(config.task, ("bad", "good", "mixed")), config
    if name == "numbers":
        return custom_table.restore_task(config.task, scale=(5.0, 2.0)), config
    if name == "tags":
        return Tagging(labels=("O", "B-PER", "B-LOC"), words=0, tags=-1), config
    return registry.make_task(config.task, ""), config


@functools.cache
def make(name, tokens, kind="modernbert", embedding_size=32, layers=1, **settings):
    """A model with random parameters: as it is kept, and its job."""
    task, config = task_and_config(name, **settings)
    given = network(kind, head=None, embedding_size=embedding_size, layers=layers)
    model = job.make_model(config, task, given)
    zeros = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Batch(zeros, zeros, zeros), zeros, zeros[:, 0])["params"]
    head = random_like(shapes["head"], seed=1)
    return Kept(given, head, tokens, task, config, FACTS), job.Job(config, task, model, given, tokens, None)


def written(folder, name, tokens, *args, **settings):
    """Such a model, and its directory."""
    model, done = make(name, tokens, *args, **settings)
    kept.write(folder / "model", done, model.params, FACTS)
    return model, folder / "model"


SQUAD = {"task.query": 4, "task.stride": 4}
MODELS = [
    ("classes", "bert", 16, {}),
    ("classes", "modernbert", 16, {"head": "paper", "pooling": "mean"}),
    ("numbers", "modernbert", 32, {}),
    ("topics", "bert", 16, {}),
    ("mrpc", "bert", 32, {}),
    ("tags", "bert", 32, {}),
    ("tags", "modernbert", 16, {}),
    ("classes", "deberta", 16, {}),
    ("squad1", "bert", 32, {**SQUAD, "head": "paper"}),
    ("squad2", "modernbert", 16, SQUAD),
]


@pytest.mark.parametrize(("name", "kind", "embedding_size", "settings"), MODELS)
def test_what_is_written_is_read(name, kind, embedding_size, settings, pieces, tmp_path):
    model, folder = written(tmp_path, name, pieces, kind, embedding_size, layers=3, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    found = kept.read(folder)
    assert (found.task, found.config, found.facts) == (model.task, model.config, FACTS)
    configs = [hf_config.write(each.network.config, None, pieces.special) for each in (found, model)]
    assert configs[0] == configs[1]  # the others are about what this kind of network has not
    assert found.tokenizer.encode(TEXTS) == pieces.encode(TEXTS)
    if kind == "modernbert":  # whose first layer has a norm that nothing uses
        for params in (found.params, model.params):
            params["encoder"]["layers"]["attention_norm"]["scale"][0] = 1
    assert same(found.params, model.params)


def test_what_is_written_predicts_what_it_did(pieces, tmp_path):
    model, folder = written(tmp_path, "classes", pieces)
    loaded = electra_jax.load(folder, batch_size=3)
    assert loaded.predict(TEXTS) == FinetunedModel("ours", model, batch_size=3).predict(TEXTS)
    assert (loaded.scores, loaded.max_length) == (FACTS["scores"], 16)


PAIRS = [("ada lives", "ben saw oslo"), ("", "the old harbour there and ada saw the harbour in oslo"), ("ben", "")]


def by_task(model, examples):
    """What the code of fine-tuning says of examples."""
    rows = model.task.encode(examples, model.tokenizer, model.config.max_length, train=False)
    params = jax.tree.map(lambda x: np.asarray(x)[None], model.params)
    (outputs,) = multi_seed.predict(model.model, params, rows, model.tokenizer.special, model.config)
    return model.task.answer(outputs, rows, examples), outputs


def test_labels_have_probabilities(pieces):
    model, _ = make("classes", pieces)
    ours = FinetunedModel("m", model, batch_size=3)
    said = ours.predict(TEXTS)
    answers, outputs = by_task(model, [Example(str(i), (text,), None) for i, text in enumerate(TEXTS)])
    assert all(isinstance(label, Label) for label in said)
    assert [label.label for label in said] == [model.task.labels[answer] for answer in answers]
    for label, scores in zip(said, outputs["scores"], strict=True):
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(list(label.probabilities.values()), expected, rtol=1e-5, atol=1e-6)
        assert label.probability == max(label.probabilities.values())
    assert ours.predict(TEXTS[1]).label == said[1].label
    assert ours.predict([]) == []


def test_any_number_of_labels_has_probabilities(pieces):
    model, _ = make("topics", pieces)
    said = FinetunedModel("m", model, batch_size=3).predict(TEXTS)
    answers, outputs = by_task(model, [Example(str(i), (text,), None) for i, text in enumerate(TEXTS)])
    for each, answer, scores in zip(said, answers, outputs["scores"], strict=True):
        assert isinstance(each, Labels)
        np.testing.assert_allclose(list(each.probabilities.values()), 1 / (1 + np.exp(-scores)), rtol=1e-5, atol=1e-6)
        assert each.labels == tuple(model.task.labels[i] for i in answer)
        assert each.labels == tuple(label for label, p in each.probabilities.items() if p >= 0.4)


def test_numbers_are_on_the_scale_of_the_training_set(pieces):
    model, _ = make("numbers", pieces)
    answers, outputs = by_task(model, [Example(str(i), (text,), None) for i, text in enumerate(TEXTS)])
    said = FinetunedModel("m", model).predict(TEXTS)
    np.testing.assert_allclose(said, answers, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(said, 5 + 2 * outputs["scores"][:, 0], rtol=1e-5, atol=1e-4)


def test_words_have_tags_and_places(pieces):
    model, _ = make("tags", pieces)
    text = "  ada lives\tin oslo and ben saw the old harbour there "  # more than one row
    said = FinetunedModel("m", model).predict(text)
    assert [word.text for word in said] == text.split()
    assert all(isinstance(word, TaggedWord) and text[word.begin : word.end] == word.text for word in said)
    example = Sentence(tuple(text.split()), None)
    assert [word.tag for word in said] == by_task(model, [example])[0][0]
    assert all(1 / 3 <= word.probability <= 1 for word in said)
    assert FinetunedModel("m", model).predict(["", "  "]) == [[], []]


@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_answers_have_places(pieces, head):
    model, _ = make("squad2", pieces, head=head, **{**SQUAD, "task.threshold": 1e6})
    for (_, context), answer in zip(PAIRS, FinetunedModel("m", model).predict(PAIRS), strict=True):
        assert isinstance(answer, Answer)
        assert context[answer.begin : answer.end] == answer.text
        assert 0 <= answer.probability <= 1
        assert bool(answer.text) == bool(context)
    never, _ = make("squad2", pieces, head=head, **{**SQUAD, "task.threshold": -1e6})
    (answer,) = FinetunedModel("m", never).predict(PAIRS[:1])
    assert (answer.text, answer.begin, answer.end) == ("", 0, 0)
    assert answer.probability > 0


def test_answers_of_short_and_long_rows_come_together(pieces):
    """The paper's head has a beam of 20, and the shortest batch would have 16 positions."""
    model, _ = make("squad1", pieces, head="paper", **{**SQUAD, "max_length": 64})
    pairs = [("ada lives", "ben saw oslo"), ("ada lives", " ".join(WORDS * 2))]
    together = FinetunedModel("m", model).predict(pairs)
    assert together == [FinetunedModel("m", model).predict(pair) for pair in pairs]
    assert together[0].text in pairs[0][1]


def test_pairs_and_single_texts_are_not_mixed_up(pieces):
    pairs, _ = make("mrpc", pieces)
    pair_model, text_model = FinetunedModel("pairs", pairs), FinetunedModel("texts", make("classes", pieces)[0], 3)
    assert pair_model.predict(("ada", "ben")) == pair_model.predict([("ada", "ben")])[0]
    assert text_model.predict(("ada", "ben")) == text_model.predict(["ada", "ben"])
    for inputs in ("ada", ["ada", "ben"], [("ada", "ben", "ada")]):
        with pytest.raises(
            UserError, match="pairs reads #1 String and #2 String: expected 2 texts for each prediction"
        ):
            pair_model.predict(inputs)
    with pytest.raises(UserError, match="texts reads text: expected 1 text for each prediction, got 2"):
        text_model.predict([("ada", "ben")])
    with pytest.raises(UserError, match="inputs is 5: expected text, or a sequence of them"):
        text_model.predict(5)
    with pytest.raises(UserError, match="input 1 is None: expected text; leave it out"):
        text_model.predict(["ada", None])
    with pytest.raises(UserError, match="input 0 is a dict: expected text; leave it out"):
        text_model.predict([{"text": "ada"}])
    assert pickle.loads(pickle.dumps(text_model)).predict("ada") == text_model.predict("ada")


def test_long_texts_are_cut_and_counted(pieces):
    model = FinetunedModel("m", make("classes", pieces)[0], batch_size=3)
    longest = " ".join(WORDS * 3)
    fits = next(" ".join(WORDS[:n]) for n in range(11, 0, -1) if len(pieces.encode([" ".join(WORDS[:n])])[0]) <= 14)
    model.predict([fits, longest, longest + " ada"])
    assert model.cut == 2
    assert model.predict(longest) == model.predict(longest + " ada")


def test_a_fine_tuned_model_still_encodes(pieces):
    model = FinetunedModel("m", make("classes", pieces)[0])
    assert model.encode(TEXTS).shape == (4, 32)
    assert "fine-tuned on table" in repr(model)
    with pytest.raises(UserError, match="m has no discriminator"):
        model.detect("ada")


def test_a_pretrained_model_cannot_predict(pieces, tmp_path):
    directory.write(tmp_path / "model", network(layers=1), "discriminator_head", pieces, "")
    with pytest.raises(UserError, match=r"was not fine-tuned, so it cannot predict; use what electra-jax finetune"):
        electra_jax.load(tmp_path / "model").predict("a text")


def test_a_step_of_a_fine_tuned_model(pieces, tmp_path):
    _, folder = written(tmp_path, "classes", pieces)
    with pytest.raises(UserError, match="model is not a run, so it has no checkpoint of step 2; leave the step out"):
        electra_jax.load(folder, step=2)


@pytest.mark.parametrize("damage", ["task.json", "head.safetensors"])
def test_a_damaged_model_is_an_error(damage, pieces, tmp_path):
    _, folder = written(tmp_path, "classes", pieces)
    (folder / damage).write_text("{}")
    with pytest.raises(UserError, match=r"model is damaged \(.*\); fine-tune again"):
        electra_jax.load(folder)


def test_a_model_without_its_tokenizer_is_an_error(pieces, tmp_path):
    _, folder = written(tmp_path, "classes", pieces)
    for name in ("tokenizer.json", "spiece.model"):
        (folder / name).unlink()
    with pytest.raises(UserError, match=r"model is damaged \(no tokenizer\); fine-tune again"):
        electra_jax.load(folder)


def test_a_model_has_the_threshold_that_was_chosen_for_it(pieces, tmp_path):
    model, done = make("topics", pieces)
    chosen = dataclasses.replace(done.task, threshold=0.123)
    kept.write(tmp_path / "model", done._replace(task=chosen), model.params, FACTS)
    assert kept.read(tmp_path / "model").task == chosen


def test_a_model_of_before_a_setting_of_its_task_is_read(pieces, tmp_path):
    model, folder = written(tmp_path, "classes", pieces)
    described = json.loads((folder / kept.TASK).read_text())
    for name in ("separator", "class_threshold"):
        del described["config"]["task"][name]
    (folder / kept.TASK).write_text(json.dumps(described))
    found = kept.read(folder)
    assert (found.task, found.config) == (model.task, model.config)


def test_tasks_are_restored_without_their_files():
    for name in glue.TASKS:
        config = recipe.resolve(recipe.make(name)).task
        task = registry.make_task(config, "")
        assert registry.restore_task(config, registry.learned(task)) == task


def test_a_fine_tuning_without_models(tmp_path):
    (tmp_path / results.SCORES).write_text('{"model": null}')
    with pytest.raises(UserError, match=r"is a fine-tuning without models; fine-tune with --keep=best"):
        electra_jax.load(tmp_path)
