"""`electra_jax.Model`, a trained encoder that takes texts, and `electra_jax.load`."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, whole
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.inference import Inference, Pooling
from electra_jax.loading.networks import load_networks
from electra_jax.loading.text_batches import check_texts

Texts = list[str] | tuple[str, ...]  # not Sequence[str], which a single str is too
ScoreBy = Literal["detection", "masks", "one_pass"]
SCORES: tuple[ScoreBy, ...] = ("detection", "masks", "one_pass")
_NON_SPACE = re.compile(r"\S+")


class DetectedWord(NamedTuple):
    """A word of a text, with the probability that it was replaced.

    Attributes:
      text: the word as it is written in the text.
      begin, end: the word is at the characters [begin, end) of the text.
      probability: probability of having been replaced; the maximum over the word's pieces.
    """

    text: str
    begin: int
    end: int
    probability: float


class Candidate(NamedTuple):
    """A prediction for a masked position.

    Attributes:
      token: the token as text.
      probability: its probability given the rest of the text.
    """

    token: str
    probability: float


def load(path: str | os.PathLike[str], step: int | None = None, batch_size: int = 16) -> "Model":
    """Loads a pre-trained model. Arguments and errors are those of `electra_jax.load`."""
    networks = load_networks(Path(path), step)
    if networks.tokenizer is None:
        raise UserError(f"{path} has no tokenizer; add its tokenizer.json to the directory")
    return Model(str(path), networks, networks.tokenizer, batch_size)


class Model:
    """A trained encoder, with its generator if there is one.

    Every method takes one text or a sequence of texts; outputs are in the order of the texts. Texts are grouped into
    length buckets, and the number of rows in a batch is padded to a power of two, at most a full batch. Each such shape
    is compiled once, and its program is kept in the compilation cache for other processes. Any run of white space in a
    text counts as one space.

    Attributes:
      name: the directory that it was loaded from.
      encoder: the network that pre-training keeps, with its heads (`encoder.config.heads`).
      generator: the network that proposes replacements; None if there is none.
      tokenizer: the tokenizer.
      notes: warnings about what was loaded, a sentence each.
    """

    def __init__(self, name: str, networks: Pretrained, tokenizer: Tokenizer, batch_size: int = 16):
        """Raises UserError if `batch_size` is less than 1."""
        check_value("batch_size", batch_size, whole(1))
        self.name, self.tokenizer, self.notes = name, tokenizer, networks.notes
        self.encoder, self.generator = networks.encoder, networks.generator
        # Electric alone has `scores`: its logit is an energy and not the log odds.
        self._scores_are_energies = bool(networks.scores)
        # An encoder with both heads was trained on [MASK] too; others that have a generator have never read one.
        both = {"discriminator_head", "mlm_head"} <= set(self.encoder.config.heads)
        mask_filler = self.encoder if self.generator is None or both else self.generator
        self._encoder_inference = self._mask_inference = Inference(self.encoder, tokenizer.special, batch_size)
        # Not for the encoder itself: each has its own copy of the parameters on the device.
        if mask_filler is not self.encoder:
            self._mask_inference = Inference(mask_filler, tokenizer.special, batch_size)

    def __repr__(self) -> str:
        c = self.encoder.config
        parts = [
            f"{c.encoder.architecture.name} encoder with {c.encoder.layers} layers of width {c.encoder.width}",
            f"heads: {', '.join(c.heads) or 'none'}",
            "with a generator" if self.generator is not None else "without a generator",
            f"{len(self.tokenizer)} pieces",
        ]
        return f"<electra_jax Model {self.name}: {'; '.join(parts)}>"

    @overload
    def encode(self, texts: str, pooling: Pooling = "mean") -> np.ndarray: ...
    @overload
    def encode(self, texts: Texts, pooling: None) -> list[np.ndarray]: ...
    @overload
    def encode(self, texts: Texts, pooling: Literal["mean", "cls"] = "mean") -> np.ndarray: ...
    def encode(self, texts: str | Texts, pooling: Pooling = "mean") -> np.ndarray | list[np.ndarray]:
        """Computes the last hidden states of the encoder, float32.

        Texts are truncated to `encoder.config.longest` tokens, [CLS] and [SEP] included.

        Args:
          texts: one text, or a sequence of n texts.
          pooling: `mean`: over a text's positions, [CLS] and [SEP] included; `cls`: the state of [CLS]; None: all
            states, not pooled.

        Returns:
          [n, D] for n texts; without pooling a list of n arrays [L, D], where L is the text's length from [CLS] to
          [SEP]. [D] or [L, D] for one text.

        Raises:
          UserError: `pooling` is none of these.

        Example:
          >>> model.encode(["a line", "another line of text"]).shape
          (2, 32)
          >>> model.encode("a line", pooling="cls").shape
          (32,)
          >>> empty, line = model.encode(["", "a line"], pooling=None)
          >>> empty.shape
          (2, 32)
        """
        if pooling not in ("mean", "cls", None):
            raise UserError(f"pooling={pooling!r} is invalid: expected 'mean', 'cls' or None")
        outputs = self._encoder_inference.encode(self._tokenize(check_texts(texts)), pooling)
        if isinstance(texts, str):
            return outputs[0]
        if pooling is None:
            return outputs
        # `np.stack` refuses an empty list; no texts are [0, D].
        return np.stack(outputs) if outputs else np.zeros((0, self.encoder.config.encoder.width), np.float32)

    @overload
    def detect(self, texts: str) -> list[DetectedWord]: ...
    @overload
    def detect(self, texts: Texts) -> list[list[DetectedWord]]: ...
    def detect(self, texts: str | Texts) -> list[DetectedWord] | list[list[DetectedWord]]:
        """Returns the words of each text with the probability that each was replaced.

        The tokenizer decides what a word is. Texts of more positions than 512, or than the model has, are split into
        windows.

        Args:
          texts: one text, or a sequence of n texts.

        Returns:
          A list of words for each text, empty for an empty text. For one text, its list.

        Raises:
          UserError: the model has no discriminator.

        Example:
          >>> [(word.text, word.begin, word.end) for word in model.detect("the  model reads")]
          [('the', 0, 3), ('model', 5, 10), ('reads', 11, 16)]
          >>> [len(words) for words in model.detect(["", "a line"])]
          [0, 2]
        """
        self._check_detects("detect")
        given = check_texts(texts)
        tokenized = [self._tokenize_with_spans(text) for text in given]
        logits = self._encoder_inference.discriminate([ids for ids, _ in tokenized])
        # By `logaddexp`, because 1 / (1 + exp(-logit)) overflows where a logit is far below 0.
        words = [
            list(self._words(text, ids, spans, np.exp(-np.logaddexp(0, -logit))))  # sigmoid
            for text, (ids, spans), logit in zip(given, tokenized, logits, strict=True)
        ]
        return words[0] if isinstance(texts, str) else words

    @overload
    def score(self, texts: str, per_token: bool = False, by: ScoreBy | None = None) -> float: ...
    @overload
    def score(self, texts: Texts, per_token: bool = False, by: ScoreBy | None = None) -> np.ndarray: ...
    def score(self, texts: str | Texts, per_token: bool = False, by: ScoreBy | None = None) -> float | np.ndarray:
        """Scores the plausibility of each text; larger is more plausible.

        The score is a sum over the text's tokens, without [CLS] and [SEP], in nats. `by` selects the terms:
          - `detection`: log(1 - p(replaced)) by the discriminator; one forward pass per text. Electric's logit is an
            energy, and the term is minus the logit: log p(token | context) up to a constant for each token (arXiv
            2012.08561);
          - `masks`: log p(token | other tokens), each token masked in turn, by the network that `fill` uses: the
            pseudo-log-likelihood (arXiv 1910.14659); one forward pass per token;
          - `one_pass`: log p(token | all tokens) by the same network, with nothing masked; one forward pass per text.

        Sums compare texts of about the same length, such as the minimal pairs of BLiMP: the accuracy is
        `(model.score(good) > model.score(bad)).mean()`. Texts of more positions than 512, or than the model has, are
        split into windows.

        Args:
          texts: one text, or a sequence of n texts.
          per_token: whether to divide each sum by the number of tokens.
          by: which terms to sum. Default: `detection` if the encoder has a discriminator head and no MLM head,
            otherwise `masks`.

        Returns:
          [n] float64; a float for one text. The score of an empty text is 0.

        Raises:
          UserError: the model has no head that can score.

        Example:
          >>> scores = model.score(["the model reads a line", "line the reads model a"])
          >>> scores.shape, bool((scores < 0).all())
          ((2,), True)
        """
        rows = self._tokenize(check_texts(texts))
        heads = self.encoder.config.heads
        by = by or ("detection" if "discriminator_head" in heads and "mlm_head" not in heads else "masks")
        if by not in SCORES:
            raise UserError(f"by={by!r} is invalid: expected {' or '.join(SCORES)}")
        if by == "detection":
            self._check_detects("score(by='detection')")
            logits = self._encoder_inference.discriminate(rows)
            # log(1 - sigmoid(x)) is -log(1 + exp(x)), by `logaddexp` because exp(x) overflows.
            terms = [-x if self._scores_are_energies else -np.logaddexp(0, x) for x in logits]
        else:
            other = "; or use by='detection'" if "discriminator_head" in heads else ""
            self._check_fills_masks("score", f"a generator or an MLM head{other}")
            terms = (
                self._mask_inference.masked_log_probs(rows) if by == "masks" else self._mask_inference.log_probs(rows)
            )
        # Summed in float64: the rounding of a long float32 sum could decide between two close texts.
        sums = np.array([term.sum(dtype=np.float64) for term in terms], np.float64)
        if per_token:
            # 1 for an empty text, whose score is 0 and not 0 / 0.
            sums /= np.array([max(1, len(row)) for row in rows], np.float64)
        return float(sums[0]) if isinstance(texts, str) else sums

    @overload
    def fill(self, texts: str, top: int = 5) -> list[list[Candidate]]: ...
    @overload
    def fill(self, texts: Texts, top: int = 5) -> list[list[list[Candidate]]]: ...
    def fill(self, texts: str | Texts, top: int = 5) -> list[list[Candidate]] | list[list[list[Candidate]]]:
        """Predicts the most probable tokens for each [MASK] of each text.

        The encoder predicts them if it has both heads (`objective=electra_mlm`) or there is no generator, otherwise
        the generator.

        [MASK], or the tokenizer's own name for it, stands for one token. If a text has several masks, each is
        predicted while the others stay masked.

        Args:
          texts: one text, or a sequence of n texts, each with at least one mask.
          top: number of candidates for each mask.

        Returns:
          For each text and each of its masks, `top` candidates, the most probable first. For one text, its masks.

        Raises:
          UserError: the model has neither generator nor MLM head, a text has no mask or is too long for the model, or
            `top` is invalid.

        Example:
          >>> first, second = model.fill("the [MASK] reads a [MASK]", top=3)
          >>> len(first), len(second), first[0].probability >= first[1].probability
          (3, 3, True)
        """
        self._check_fills_masks("fill", "a generator or an MLM head")
        check_value("top", top, whole(1))
        # [CLS] and [SEP] take two positions.
        longest = self._mask_inference.network.config.longest - 2
        rows, positions, counts = [], [], []
        for text in check_texts(texts):
            row = self._tokenize_with_masks(text)
            if len(row) > longest:
                raise UserError(f"text {text[:40]!r}... has {len(row)} tokens: expected {longest} or fewer; shorten it")
            masks = [i for i, token in enumerate(row) if token == self.tokenizer.special.mask]
            if not masks:
                raise UserError(f"text {text[:40]!r} has no mask: expected [MASK] in place of a word")
            # `predict` reads one position of a row, so a row with several masks is computed once for each.
            rows += [row] * len(masks)
            positions += masks
            counts.append(len(masks))
        candidates = iter([self._candidates(x, top) for x in self._mask_inference.predict(rows, positions)])
        result = [[next(candidates) for _ in range(count)] for count in counts]
        return result[0] if isinstance(texts, str) else result

    def _check_detects(self, method: str) -> None:
        if "discriminator_head" not in self.encoder.config.heads:
            raise UserError(
                f"{self.name} has no discriminator, which {method} needs; use a model that was trained to detect "
                "replaced tokens"
            )

    def _check_fills_masks(self, method: str, needed: str) -> None:
        if "mlm_head" not in self._mask_inference.network.config.heads:
            raise UserError(f"{self.name} has no head that {method} can use; use a model with {needed}")

    def _candidates(self, log_probs: np.ndarray, top: int) -> list[Candidate]:
        pieces = log_probs[: len(self.tokenizer)]  # some released models have more embeddings than pieces
        # Stable, so that of equal probabilities the lower id comes first on every machine.
        best = np.argsort(-pieces, kind="stable")[:top].tolist()
        return [Candidate(self.tokenizer.decode([token]).strip(), float(np.exp(log_probs[token]))) for token in best]

    def _words(
        self, text: str, ids: list[int], spans: list[tuple[int, int]], probabilities: np.ndarray
    ) -> Iterator[DetectedWord]:
        if self.tokenizer.marks_words:
            starts = [i for i, token in enumerate(ids) if i == 0 or self.tokenizer.word_starts[token]]
        else:  # then words begin after a gap between spans
            starts = [i for i, (begin, _) in enumerate(spans) if i == 0 or begin > spans[i - 1][1]]
        for first, end in itertools.pairwise([*starts, len(ids)]):
            # A piece of space has no character of its own; a word of such pieces alone is left out.
            visible = [span for span in spans[first:end] if span[1] > span[0]]
            if visible:
                begin, stop = visible[0][0], visible[-1][1]
                yield DetectedWord(text[begin:stop], begin, stop, float(probabilities[first:end].max()))

    def predict(self, inputs: str | tuple[str, ...] | Sequence[str | tuple[str, ...]]) -> Any:
        """Predicts with a fine-tuned model, for texts or pairs of texts.

        Texts longer than the maximum length of fine-tuning are truncated, except the context of a question and a text
        of words to tag, which are split into windows.

        Args:
          inputs: what the task reads: a text, a pair of texts, a question and its context, or a text of words to tag,
            separated by white space; or a sequence of them.

        Returns:
          A prediction for each input, by the kind of task (`electra_jax.downstream.predictions`): a `Label` with
          probabilities; a number; an `Answer` with its place in the context, empty if there is none; or a `TaggedWord`
          for each word. For one input, its prediction.

        Raises:
          UserError: the model was not fine-tuned, or an input has the wrong number of texts.
        """
        raise UserError(f"{self.name} was not fine-tuned, so it cannot predict; use what electra-jax finetune wrote")

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        # As `prepare` does it: models have read no white space other than single spaces.
        return self.tokenizer.encode([" ".join(text.split()) for text in texts])

    def _tokenize_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns token ids, and for each the characters [begin, end) of `text`; begin = end for a piece of space."""
        words = [match.span() for match in _NON_SPACE.finditer(text)]
        ids, spans = self.tokenizer.spans(" ".join(text[begin:end] for begin, end in words))
        origin = [i for begin, end in words for i in (*range(begin, end), end)]  # of each character, spaces included
        return ids, [(origin[begin], origin[end - 1] + 1) if end > begin else (0, 0) for begin, end in spans]

    def _tokenize_with_masks(self, text: str) -> list[int]:
        """Like `_tokenize` of one text, but [MASK] becomes the mask token; the tokenizer itself reads it as text."""
        mask = self.tokenizer.special.mask
        names = "|".join(map(re.escape, {"[MASK]", self.tokenizer.name_of(mask)}))
        *before, last = re.split(names, " ".join(text.split()))
        row: list[int] = []
        for part in self.tokenizer.encode([part.rstrip() for part in before]):  # no piece for a space before a mask
            row += [*part, mask]
        return row + self.tokenizer.encode([last])[0]
