"""Token classification: a tag for each word, for named entities, parts of speech or chunks."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.tasks import chunks, conllu, files
from electra_jax.downstream.tasks.conll import Columns, Sentence, read_sentences
from electra_jax.downstream.tasks.labels import in_order
from electra_jax.downstream.tasks.task import IGNORED, BadRows, Rows, Task, frame
from electra_jax.runtime.io import write_whole

_HEADINGS = {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags", "upos"}
_SUFFIXES = (".txt", ".conll", conllu.SUFFIX, ".tsv")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Token classification.

    Attributes:
      labels: the tags, in index order.
      name: the task's name.
      words: column of the words, from 0; negative numbers count from the last column.
      tags: column of the tags, likewise.
    """

    labels: tuple[str, ...]
    name: str = "tags"
    words: int
    tags: int
    dev: tuple[str, ...] = ("dev",)
    test: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"test": "test"})
    kind = "tagging"
    suffixes = _SUFFIXES

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def main_metric(self) -> str:
        """Name of the main score: `f1` if tags mark chunks, else `accuracy`."""
        return "f1" if chunks.mark_chunks(self.labels) else "accuracy"

    def read(self, data_dir: str, split: str, bad_rows: BadRows) -> list[Sentence]:
        # A test set may have no column of tags.
        columns = Columns(self.words, None if split in self.test else self.tags)
        path = files.find_split(Path(data_dir), split, self.suffixes)
        return list(read_sentences(path, columns, bad_rows, frozenset(self.labels)))

    def encode(self, examples: Sequence[Sentence], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Encodes each word on its own, with the target on its first piece. A long sentence has several rows."""
        del train  # rows are the same for training and evaluation
        room, special = max_length - 2, tokenizer.special
        number_of = {label: i for i, label in enumerate(self.labels)}
        ids: list[list[int]] = []
        firsts: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        owners, cut_sentences = [], 0
        for number, (example, pieces) in enumerate(zip(examples, _encode_words(examples, tokenizer), strict=True)):
            cut = [(word or [special.unk])[:room] for word in pieces]  # normalization may remove a whole word
            cut_sentences += any(len(word) > room for word in pieces)
            at = 0
            for count in _words_per_row([len(word) for word in cut], room):
                row, _ = frame([*itertools.chain(*cut[at : at + count])], None, special)
                # After [CLS], each word begins where the pieces of those before it end.
                first = 1 + np.cumsum([0, *map(len, cut[at : at + count - 1])])
                if example.tags is not None:
                    target = np.full(len(row), IGNORED, np.int32)
                    # Other pieces of the word stay `IGNORED`.
                    target[first] = [number_of[tag] for tag in example.tags[at : at + count]]
                    targets.append(target)
                ids.append(row)
                firsts.append(first)
                owners.append(number)
                at += count
        named = {"target": targets} if targets else {}
        return Rows(ids, [len(row) for row in ids], np.array(owners, np.int64), named, firsts, cut_sentences)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Sentence]) -> list[list[str]]:
        """Returns the tags of each example; `outputs["scores"]` has logits [tokens, C] for each row."""
        words = self.word_scores(outputs, rows, len(examples))
        return [[self.labels[int(np.argmax(scores_C))] for scores_C in example] for example in words]

    def word_scores(self, outputs: Mapping[str, Any], rows: Rows, count: int) -> list[list[np.ndarray]]:
        """Returns the logits [C] of each word of each of `count` examples."""
        found: list[list[np.ndarray]] = [[] for _ in range(count)]
        # A long sentence has several rows, in the order of its words.
        for number, first, scores_LC in zip(rows.example, rows.extra, outputs["scores"], strict=True):
            found[number] += [*scores_LC[first]]  # the first piece of a word stands for it
        return found

    def score(self, examples: Sequence[Sentence], answers: Sequence[Sequence[str]]) -> dict[str, float]:
        scores = chunks.score([example.tags or () for example in examples], answers)
        return scores if self.main_metric == "f1" else {"accuracy": scores["accuracy"]}

    def write(self, path: Path, examples: Sequence[Sentence], answers: Sequence[Sequence[str]]) -> None:
        """Writes one word and its tag per line, separated by a tab, and a blank line between sentences."""
        sentences = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True))
            for example, tags in zip(examples, answers, strict=True)
        )
        write_whole(path.with_name(f"{path.name}.txt"), "\n".join(sentences))


def make_task(data_dir: str, words: int, tags: int) -> Tagging:
    """Makes the tagging task of a folder. Its labels are the tags of the training set, sorted, with O first.

    Args:
      data_dir: the folder.
      words: column of the words.
      tags: column of the tags.

    Raises:
      UserError: there is no training set, it begins with headings or has fewer than two tags, or two tags are the same
        number.
    """
    if data_dir.startswith(files.TFDS):
        raise UserError(f"{data_dir} has no words and tags: expected a folder with files in columns")
    path = files.find_split(Path(data_dir), "train", _SUFFIXES)
    # Bad rows are reported when the examples are read.
    sentences = [*read_sentences(path, Columns(words, tags), BadRows(strict=False))]
    word, tag = sentences[0].words[0], (sentences[0].tags or ("",))[0]
    if tag.lower() in _HEADINGS:
        raise UserError(
            f"{path} begins with the headings {word!r} and {tag!r}: expected a word and its tag; remove them"
        )
    labels = {tag for sentence in sentences for tag in sentence.tags or ()}
    if len(labels) < 2:
        raise UserError(
            f"{path} has {len(labels)} tags in column {tags}: expected two or more; set config.task.tags to the column "
            "of the tags and config.task.words to that of the words"
        )
    outside = labels & {chunks.OUTSIDE}
    # O apart: beside integer tags it would make all of them names, sorted as strings.
    ordered = (*outside, *in_order(labels - outside, f"{path}: column {tags}"))
    return Tagging(labels=ordered, words=words, tags=tags)


def _encode_words(examples: Sequence[Sentence], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Yields the pieces of each word, example by example."""
    words = [word for example in examples for word in example.words]
    follows = [i > 0 for example in examples for i in range(len(example.words))]
    encoded = iter(tokenizer.encode_parts(words, follows))
    return ([*itertools.islice(encoded, len(example.words))] for example in examples)


def _words_per_row(lengths: Sequence[int], room: int) -> Iterator[int]:
    """Yields the number of words in each row, as many as fit."""
    count = used = 0
    for length in lengths:
        # Words were cut to `room`, so each fits into a row of its own.
        if used + length > room:
            yield count
            count = used = 0
        count, used = count + 1, used + length
    if count:
        yield count
