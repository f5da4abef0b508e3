"""Writes the model card of an exported network: what it is, how to use it, how it was trained."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from electra_jax.loading.huggingface import hf_config
from electra_jax.modeling.config import EncoderConfig

# (end of the discriminator's class, what the model reads) -> (the Hub's pipeline tag, or empty if no pipeline fits;
# example code).
_USE: dict[tuple[str, str | None], tuple[str, str]] = {
    ("ForPreTraining", "discriminator_head"): (
        "",
        """\
from transformers import AutoModelForPreTraining, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForPreTraining))
inputs = tokenizer("a line of text", return_tensors="pt")
print(model(**inputs).logits.sigmoid())  # for every token: {scores}""",
    ),
    ("ForTokenClassification", "discriminator_head"): (
        "token-classification",
        """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForTokenClassification))
inputs = tokenizer("a line of text", return_tensors="pt")
print(model(**inputs).logits.softmax(-1)[..., 1])  # for every token: {scores}""",
    ),
    ("Model", "discriminator_head"): (
        "",
        """\
from transformers import AutoModel, AutoTokenizer

# No class of transformers has this discriminator's head; electra_jax has:
# electra_jax.load({path!r}).detect("a line of text") gives for every token: {scores}
tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModel))
print(model(**tokenizer("a line of text", return_tensors="pt")).last_hidden_state.shape)""",
    ),
    ("any", None): (
        "feature-extraction",
        """\
from transformers import AutoModel, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModel))
print(model(**tokenizer("a line of text", return_tensors="pt")).last_hidden_state.shape)""",
    ),
    ("any", "fakes"): (
        "",
        """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForMaskedLM))
logits = model(**tokenizer("a line of text", return_tensors="pt")).logits  # it was trained on fakes, not on {mask}
print(tokenizer.batch_decode(logits.argmax(-1)))  # its guess at the original text""",
    ),
    ("any", "mlm_head"): (
        "fill-mask",
        """\
from transformers import pipeline

print(pipeline("fill-mask", {path!r})("a line of {mask}"))""",
    ),
}


_ENCODER = """\
Fine-tune it to classify, tag or compare texts like those that it was trained on. It does not write text."""
_GENERATOR = """\
It proposes tokens for masked positions. It is smaller than the encoder that it was trained with: fine-tune that one."""


class TaskScore(NamedTuple):
    """Score of a fine-tuning on a development set, in percent: median, lowest and highest over its seeds.

    `recipe` says in words what was chosen for it: rate, epochs, pooling, number of examples.
    """

    task: str
    metric: str
    median: float
    lowest: float
    highest: float
    seeds: int
    recipe: str


class RunDescription(NamedTuple):
    """Facts about how a network was trained.

    Attributes:
      system: the name of the objective.
      summary, paper, scores: as in `ObjectiveSpec`.
      reads_masks: whether the encoder was trained on text with [MASK].
      trained_length: tokens of the longest row in training, special tokens included.
      facts: rows of the table "How it was trained": (name, value).
      heldout: held-out metrics, by name.
      settings: the run's whole config.
      downstream: scores after fine-tuning.
    """

    system: str
    summary: str
    paper: str
    scores: str
    reads_masks: bool
    trained_length: int
    facts: Sequence[tuple[str, str]]
    heldout: Mapping[str, float]
    settings: Mapping[str, Any]
    downstream: Sequence[TaskScore] = ()


def _downstream(scores: Sequence[TaskScore]) -> list[str]:
    """Returns the lines of the section about fine-tuning; none without scores."""
    if not scores:
        return []
    table = [
        f"| {score.task} | {score.metric} | {score.median:.1f} | {score.lowest:.1f} to {score.highest:.1f} "
        f"| {score.seeds} | {score.recipe} |"
        for score in scores
    ]
    return [
        "## Scores after fine-tuning",
        "",
        "On the development sets, over seeds of fine-tuning.",
        "",
        "| task | score | median | lowest to highest | seeds | fine-tuned with |",
        "|---|---|---|---|---|---|",
        *table,
        "",
    ]


def write_card(run: RunDescription, name: str, encoder: EncoderConfig, head: str | None, mask: str) -> str:
    """Writes the model card, in Markdown.

    Args:
      run: how the network was trained.
      name: the directory's name in the export.
      encoder: the exported network.
      head: the exported head; None for none.
      mask: the mask token as text.
    """
    tags = ["electra_jax", encoder.architecture.model_type, "replaced-token-detection"]
    # A model that was trained on fakes alone has never read [MASK], so fill-mask would mislead.
    read = "fakes" if name == "masked_lm" and not run.reads_masks else head
    class_name = hf_config.class_name(encoder, head)
    task, use = _USE.get((encoder.architecture.detector_class(encoder), read)) or _USE["any", read]
    task_line = f"pipeline_tag: {task}\n" if task else ""
    longer = "fine-tune on texts as long as yours first"
    # Rotary and relative positions have no table entry that training must have seen.
    if encoder.architecture.absolute:
        longer = "later positions are as they were drawn. Pass `truncation=True` and keep `model_max_length`"
    facts = "\n".join(f"| {fact} | {value} |" for fact, value in run.facts)
    measured = [f"| {measure.replace('_', ' ')} | {value:.4g} |" for measure, value in run.heldout.items()]
    heldout = "\n".join(["| measure | value |", "|---|---|", *measured])
    downstream = "".join(f"{line}\n" for line in _downstream(run.downstream))
    return f"""\
---
library_name: transformers
{task_line}tags: [{", ".join(tags)}]
---

# {name.replace("_", " ").capitalize()} of {run.system}

`{class_name}`, pre-trained with electra_jax. Objective {run.system}: {run.summary} ({run.paper}).

## How to use it

```python
{use.format(path=name, mask=mask, scores=run.scores or "the probability that it was replaced")}
```

Pass the path of this directory, or its name on the hub, to `from_pretrained`.

Training saw no text of more than {run.trained_length} tokens, special tokens included: {longer}.

## What it is for

{_GENERATOR if name == "generator" else _ENCODER}

Its errors and biases are those of its text, and have not been examined. Measure it on your own data before you rely on
it, and do not let it decide about people.

{downstream}## How it was trained

| | |
|---|---|
{facts}

## Held-out metrics

{heldout if measured else "These weights were not evaluated."}

Losses are in nats. `unigram entropy` and `constant entropy` are the losses of a model that knows only the frequencies
of the tokens, or of replaced tokens. `auc` is the area under the ROC curve for detecting replaced tokens: fakes of the
generator, or, with `unigram`, fakes drawn by token frequency.

## Settings

```json
{json.dumps(run.settings, indent=1)}
```
"""
