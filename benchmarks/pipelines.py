"""How many answers of `electra-jax predict` transformers gives too, once the model is exported.

    electra-jax finetune --config=glue:task=mrpc --init_from=runs/tiny --data_dir=glue/MRPC --workdir=runs/mrpc
    python benchmarks/pipelines.py --model=runs/mrpc --data_dir=glue/MRPC [--split=dev] [--examples=0]

Any fine-tuned model will do: classes, numbers, tags, or SQuAD. The split is predicted as a file; the model is exported,
loaded by transformers, and asked the same. It prints a line of JSON: the examples of the split, how many of them were
compared, how many answers are equal, and the largest difference of a probability or number. Left out are
sentences to tag that are longer than the model, or have a word of which normalization leaves nothing, and questions
longer than `config.task.query`: transformers cuts them, or has no tag for the word.

transformers 5 has no pipeline for questions, so for SQuAD this file has the algorithm of version 4's, with the windows
of the fine-tuning: of all windows, the span with the largest product of the probabilities of its start and end. By
default that pipeline widened an answer to whole words, and version 4.57's adds up the probabilities of the same text in
several windows; this file does neither.

Needs `'.[downstream,onnx]'`; `--examples=N` takes the first N.
"""

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import extras
import numpy as np

from electra_jax import models
from electra_jax.commands import predict
from electra_jax.config import cli, errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value
from electra_jax.downstream import predictions
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.tasks.sentences import Sentences
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.task import BadRows

with extras.needed("pip install '.[downstream,onnx]'"):
    import torch
    import transformers

_BATCH = 32
_NUMBERS_AGREE = 1e-4  # relative to the spread of the numbers


class Answer(NamedTuple):
    """An answer, as it is compared, and its number: a probability, or what a regression predicts."""

    answer: Any
    number: float


def classes(folder: Path, texts: Sequence[tuple[str, ...]]) -> Iterator[Answer]:
    classify = transformers.pipeline("text-classification", str(folder), batch_size=_BATCH)
    given = [{"text": first, **({"text_pair": second[0]} if second else {})} for first, *second in texts]
    for found in classify(given, truncation=True):
        yield Answer(found["label"], found["score"])


def tags(folder: Path, texts: Sequence[tuple[str, ...]]) -> Iterator[Answer]:
    """The tags of the first pieces of words; the number is the smallest probability of the sentence."""
    tag = transformers.pipeline("token-classification", str(folder), ignore_labels=[])
    for (text,) in texts:
        words = text.split()
        found = tag(words, is_split_into_words=True)
        pieces = found[0] if isinstance(found[0], list) else found
        begins = itertools.accumulate((len(word) + 1 for word in words[:-1]), initial=0)
        by_word = [next(each for each in pieces if int(each["start"]) <= begin < int(each["end"])) for begin in begins]
        yield Answer([each["entity"] for each in by_word], float(min(each["score"] for each in by_word)))


def spans(folder: Path, texts: Sequence[tuple[str, ...]], task: Answering, max_length: int) -> Iterator[Answer]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    for question, context in texts:
        room = max_length - 3 - len(tokenizer(question, add_special_tokens=False)["input_ids"])
        encoded = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=max_length,
            stride=max(0, room - task.config.stride),  # theirs is what two windows share
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=True,
            return_tensors="pt",
        )
        inputs = {name: encoded[name] for name in tokenizer.model_input_names}
        with torch.no_grad():
            outputs = model(**inputs)
        best, nothing = Answer("", 0.0), np.inf
        for row, (start, end) in enumerate(zip(outputs.start_logits.numpy(), outputs.end_logits.numpy(), strict=True)):
            in_context = np.array([part == 1 for part in encoded.sequence_ids(row)])
            in_context &= inputs["attention_mask"][row].numpy() == 1
            allowed = in_context | (np.arange(len(in_context)) == 0)
            start, end = (_softmax(np.where(allowed, x.astype(np.float64), -np.inf)) for x in (start, end))
            nothing = min(nothing, start[0] * end[0])
            both = np.tril(np.triu(np.outer(start * in_context, end * in_context)), task.config.max_answer - 1)
            first, last = np.unravel_index(both.argmax(), both.shape)
            if both[first, last] > best.number:
                offsets = encoded["offset_mapping"][row]
                text = context[int(offsets[first][0]) : int(offsets[last][1])].strip()
                best = Answer(text, float(both[first, last]))
        yield Answer("", best.number) if task.may_be_impossible and nothing > best.number else best


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def ours(model: Path, names: Sequence[str], texts: Sequence[tuple[str, ...]], folder: Path) -> Iterator[Answer]:
    """What `electra-jax predict` writes for a file of these texts."""
    with (folder / "texts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(zip(names, each, strict=True))) + "\n" for each in texts)
    predict.main([f"--model={model}", f"--input={folder}/texts.jsonl", f"--output={folder}/predictions.jsonl"])
    for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if "words" in found:
            words = found["words"]
            yield Answer([word["tag"] for word in words], min(word["probability"] for word in words))
        elif "label" in found:
            yield Answer(found["label"], found["probability"])
        elif "prediction" in found:
            yield Answer(None, found["prediction"])
        else:
            yield Answer(found["text"], found["probability"])


def readable(model: FinetunedModel, texts: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those that transformers reads as a whole."""
    if isinstance(model.task, Sentences):
        return list(texts)
    if isinstance(model.task, Answering):
        lengths = map(len, model.tokenizer.encode([question for question, _ in texts]))
        return [each for each, length in zip(texts, lengths, strict=True) if length <= model.task.config.query]
    examples = predictions.make_examples(model.task, texts)
    rows = model.task.encode(examples, model.tokenizer, model.max_length, train=False)
    one_row = np.bincount(rows.example) == 1
    whole = [all(model.tokenizer.encode(text.split())) for (text,) in texts]
    return [each for each, *good in zip(texts, one_row, whole, strict=True) if all(good)]


def compare(model_dir: Path, data_dir: str, split: str, count: int) -> dict[str, Any]:
    model = models.load(model_dir)
    if not isinstance(model, FinetunedModel):
        raise UserError(f"--model={model_dir} was not fine-tuned; use what electra-jax finetune wrote")
    task = model.task
    if task.kind == "multilabel":
        raise UserError("models of any number of classes are compared by tests/parity/test_finetuned_export.py only")
    examples = task.read(data_dir, split, BadRows(strict=False))[: count or None]
    texts: list[tuple[str, ...]]
    if isinstance(task, Answering):
        texts = [(example.question, example.context) for example in examples]
    elif isinstance(task, Sentences):
        texts = [example.texts for example in examples]
    else:
        texts = [(" ".join(example.words),) for example in examples]
    compared = readable(model, texts)
    if not compared:
        raise UserError(f"transformers reads none of the {len(examples)} examples of {split} as a whole; see --help")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        here = list(ours(model_dir, predictions.texts_of(task), compared, folder))
        models.export(model_dir, folder / "exported")
        if isinstance(task, Answering):
            there = list(spans(folder / "exported", compared, task, model.max_length))
        else:
            there = list((classes if isinstance(task, Sentences) else tags)(folder / "exported", compared))
    differences = np.array([abs(a.number - b.number) for a, b in zip(here, there, strict=True)])
    if task.kind == "regression":
        equal = differences <= _NUMBERS_AGREE * np.ptp([a.number for a in here])
    else:
        equal = np.array([a.answer == b.answer for a, b in zip(here, there, strict=True)])
    return {
        "task": task.name,
        "examples": len(examples),
        "compared": len(compared),
        "equal": int(equal.sum()),
        "largest_difference": float(differences.max()),
    }


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", {"model": "", "data_dir": "", "split": "dev", "examples": 0})
    cli.require(chosen, ("model", "data_dir"))
    check_value("--examples", chosen["examples"], at_least(0))
    transformers.utils.logging.set_verbosity_error()
    with contextlib.redirect_stdout(sys.stderr):
        found = compare(Path(chosen["model"]), chosen["data_dir"], chosen["split"], chosen["examples"])
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
