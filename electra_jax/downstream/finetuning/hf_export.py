"""Export of fine-tuned models to directories of transformers' class for their task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import kept
from electra_jax.downstream.finetuning.kept import Kept
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.sentences import Sentences
from electra_jax.downstream.tasks.task import Task
from electra_jax.loading.huggingface import bert, directory, hf_config, onnx_file
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.io import check_output, new_folder

_USE = {
    "classification": """\
from transformers import pipeline

classify = pipeline("text-classification", {path!r})
print(classify({inputs}, truncation=True))""",
    "multilabel": """\
from transformers import pipeline

classify = pipeline("text-classification", {path!r}, top_k=None)  # a probability for each class
print([found["label"] for found in classify([{inputs}], truncation=True)[0] if found["score"] >= {threshold}])""",
    "tagging": """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForTokenClassification))
words = "Ada lives in Oslo .".split()  # as in the training set
inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
tags = [model.config.id2label[number] for number in model(**inputs).logits[0].argmax(-1).tolist()]
pieces = inputs.word_ids()  # for each piece the number of its word, which has the tag of its first piece
print([(word, tags[pieces.index(number)]) for number, word in enumerate(words)])""",
    "answering": """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForQuestionAnswering))
inputs = tokenizer("Where does Ada live?", "Ada lives in Oslo.", return_tensors="pt")
outputs = model(**inputs)
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()  # both at [CLS] if there is no answer
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))""",
}
_GENERAL = {"regression": "classification", "multilabel": "classification"}  # transformers has one class for all three
_PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",  # its pipeline takes the sigmoid of each logit
    # Without it, the pipeline takes the sigmoid of a single output.
    "regression": "regression",
}
# CrossEncoder of sentence-transformers applies a sigmoid to a single output, and no activation to several.
_ACTIVATIONS = {"regression": "torch.nn.modules.linear.Identity", "multilabel": "torch.nn.modules.activation.Sigmoid"}
_TAGS = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "answering": "question-answering",
}


def export(model: Kept, output: Path, onnx: bool = False, dtype: str = "float32") -> str:
    """Exports a fine-tuned model atomically to a directory for transformers' `from_pretrained` and pipelines.

    `electra_jax.load` reads it too. A regression model outputs the numbers themselves: their mean and standard
    deviation are folded into the last layer.

    Args:
      model: the fine-tuned model.
      output: a directory that does not exist yet or is empty.
      onnx: whether to write ONNX files too, which needs PyTorch.
      dtype: dtype of the stored weights, one of `directory.DTYPES`.

    Returns:
      The name of transformers' class.

    Raises:
      UserError: transformers has no class for the model's head, `output` is not empty, or PyTorch is missing.
    """
    kind = _GENERAL.get(model.task.kind, model.task.kind)
    encoder, config = model.network.config.encoder, model.config
    if config.head == "paper":
        raise UserError(
            f"this model has the paper's head for {model.task.name}, for which transformers has no class; fine-tune "
            "again without head=paper"
        )
    if kind not in encoder.architecture.task_heads:
        raise UserError(
            f"transformers has no class with this head for encoder={encoder.architecture.name}; use the model in "
            "electra_jax"
        )
    network = Network(model.model.config, {**model.network.params, "head": _scaled(model.task, model.head)})
    if config.head == "bert":
        network = bert.with_names(network)
    name = hf_config.class_name(network.config.encoder, kind)
    # Architectures that pool read `classifier_pooling` in config.json, which `_settings` writes.
    if kind == "classification" and not encoder.architecture.pools and config.pooling != "cls":
        raise UserError(
            f"this model was fine-tuned with pooling={config.pooling}, but transformers' {name} reads the state of "
            "[CLS]; fine-tune again with config.pooling=cls"
        )
    check_output(output)
    if onnx:
        onnx_file.check_installed()
    with new_folder(output) as partial:
        directory.write(
            partial,
            network,
            kind,
            model.tokenizer,
            _card(model, network, kind, name, str(output)),
            more=_settings(model, kind),
            max_length=config.max_length,
            dtype=dtype,
        )
        # Unscaled, unlike transformers' weights: `Sentences.answer` applies the scale to what `electra_jax.load` reads.
        kept.write_task(partial, config, model.task, model.head, model.facts)
        if onnx:
            onnx_file.write(partial)
    return name


def _scaled(task: Task, head: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the head with the scale of a regression folded into its last layer."""
    # (x W + b) factor + offset = x (W factor) + (b factor + offset); without a scale nothing changes.
    offset, factor = task.scale if isinstance(task, Sentences) else (0.0, 1.0)
    last = head["classifier"]
    return {**head, "classifier": {"kernel": last["kernel"] * factor, "bias": last["bias"] * factor + offset}}


def _settings(model: Kept, kind: str) -> dict[str, Any]:
    """Returns the head's settings in config.json."""
    labels = getattr(model.task, "labels", ())
    architecture = model.network.config.encoder.architecture
    settings: dict[str, Any] = {architecture.classifier_dropout: model.config.dropout}
    if labels:
        # The names of JSON's objects are strings; transformers converts them to numbers.
        settings["id2label"] = {str(number): label for number, label in enumerate(labels)}
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    elif kind == "classification":
        # transformers takes the number of outputs from id2label, and 2 if there is none.
        settings |= {"id2label": {"0": "number"}, "label2id": {"number": 0}}
    if kind == "classification":
        settings["problem_type"] = _PROBLEMS[model.task.kind]
    if activation := _ACTIVATIONS.get(model.task.kind):
        settings["sentence_transformers"] = {"activation_fn": activation}
    if architecture.pools:
        settings |= {"classifier_pooling": model.config.pooling}
    return settings


def _card(model: Kept, network: Network, kind: str, name: str, path: str) -> str:
    task, facts = model.task, model.facts
    pair = isinstance(task, Sentences) and len(task.columns.texts) > 1
    inputs = '{"text": "a text", "text_pair": "another"}' if pair else '"a text"'
    use = _USE[model.task.kind if model.task.kind in _USE else kind]
    threshold = task.threshold if isinstance(task, MultiLabel) else None
    rows = "\n".join(f"| {score} | {value:.1f} |" for score, value in facts["scores"].items())
    return f"""\
---
library_name: transformers
pipeline_tag: {_TAGS[kind]}
tags: [electra_jax, {network.config.encoder.architecture.model_type}]
---

# {name} for {task.name}

Pre-trained and fine-tuned with electra_jax: from `{facts["init_from"]}`, seed {facts["seed"]}. It reads texts of up to
{model.config.max_length} tokens.

## How to use it

```python
{use.format(path=path, inputs=inputs, threshold=threshold)}
```

## Scores on {kept.scored_on(model.config)}

| score | |
|---|---|
{rows}
"""
