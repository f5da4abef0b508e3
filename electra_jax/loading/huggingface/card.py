"""The model card of an exported network, filled from its run: what it is, how to use it, how it was made."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from electra_jax.loading.huggingface import hf_config

# By encoder and head: what a hub runs with it (nothing it knows, where empty), and how it is used.
_USE: dict[tuple[str, str | None], tuple[str, str]] = {
    ("bert", "discriminator_head"): (
        "",
        """\
from transformers import AutoModelForPreTraining, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForPreTraining))
inputs = tokenizer("a line of text", return_tensors="pt")
print(model(**inputs).logits.sigmoid())  # of every token: {scores}""",
    ),
    ("modernbert", "discriminator_head"): (
        "token-classification",
        """\
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer, model = (kind.from_pretrained({path!r}) for kind in (AutoTokenizer, AutoModelForTokenClassification))
inputs = tokenizer("a line of text", return_tensors="pt")
print(model(**inputs).logits.softmax(-1)[..., 1])  # of every token: {scores}""",
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
logits = model(**tokenizer("a line of text", return_tensors="pt")).logits  # it reads fakes, not {mask}
print(tokenizer.batch_decode(logits.argmax(-1)))  # what it takes for the original""",
    ),
    ("any", "mlm_head"): (
        "fill-mask",
        """\
from transformers import pipeline

print(pipeline("fill-mask", {path!r})("a line of {mask}"))""",
    ),
}


class Made(NamedTuple):
    """What a run says of itself.

    Attributes:
      system, summary, paper, scores: of its objective.
      reads_masks: whether its kept network has read [MASK].
      facts: (what, value) of how it was made.
      heldout: held-out numbers by name.
      settings: its whole config.
    """

    system: str
    summary: str
    paper: str
    scores: str
    reads_masks: bool
    facts: Sequence[tuple[str, str]]
    heldout: Mapping[str, float]
    settings: Mapping[str, Any]


def write(made: Made, name: str, kind: str, head: str | None, mask: str) -> str:
    """The card, in Markdown.

    Args:
      made: of its run.
      name: of its directory in the export.
      kind: of the encoder.
      head: as `weights.export`.
      mask: the mask token.
    """
    tags = ["electra_jax", hf_config.MODEL_TYPES[kind], "replaced-token-detection"]
    read = "fakes" if name == "masked_lm" and not made.reads_masks else head
    task, use = _USE.get((kind, read)) or _USE["any", read]
    task_line = f"pipeline_tag: {task}\n" if task else ""
    facts = "\n".join(f"| {what} | {value} |" for what, value in made.facts)
    measured = [f"| {measure.replace('_', ' ')} | {value:.4g} |" for measure, value in made.heldout.items()]
    heldout = "\n".join(["| measure | value |", "|---|---|", *measured])
    return f"""\
---
library_name: transformers
{task_line}tags: [{", ".join(tags)}]
---

# {name.replace("_", " ").capitalize()} of a run of {made.system}

`{hf_config.CLASSES[kind][head]}`, pre-trained by electra_jax. {made.system}: {made.summary} ({made.paper}).

## How to use it

```python
{use.format(path=name, mask=mask, scores=made.scores or "the probability that it was replaced")}
```

Give `from_pretrained` the path of this directory, or the name it has on a hub.

## How it was made

| | |
|---|---|
{facts}

## Held-out numbers

{heldout if measured else "None were measured before this step."}

Losses are in nats; `unigram entropy` and `constant entropy` are what knowing only the frequencies would give; `auc` is
the area under the ROC curve of telling replaced tokens, the generator's own or (`unigram`) drawn by frequency.

## Settings

```json
{json.dumps(made.settings, indent=1)}
```
"""
