"""Builds a topic task from SQuAD (which article is a question about?) and reports what bags of words score on it.

    python benchmarks/topics.py --squad=dev-v1.1.json.xz --output=FOLDER [--train=20]
    electra-jax finetune --config=table --config.task.text=question --init_from=runs/tiny --data_dir=FOLDER

The classes are SQuAD's articles. Questions about the first half of an article's paragraphs are for training, `--train`
of each article, evenly spaced; all about the second half are the dev set. So both sets have no paragraph in common.
FOLDER gets train.tsv and dev.tsv.

The bag of words is TF-IDF of words, or of words and pairs of words, and a linear classifier (scikit-learn): logistic
regression, a support vector machine or complement naive Bayes. Cross-validation on the training set chooses among them
and among four strengths of regularization. A second bag has words and their parts of three to five letters.
"""

import json
import lzma
import sys
from pathlib import Path
from typing import Any, NamedTuple

import extras

from electra_jax.config import cli, errors, settings
from electra_jax.runtime.io import write_whole

_PARTS = 3  # of the cross-validation
_OPTIONS = {"squad": "", "output": "", "train": 20}


class Question(NamedTuple):
    """A question, and the article that it is about."""

    text: str
    article: str


def split(squad: dict[str, Any], train: int) -> tuple[list[Question], list[Question]]:
    """(training set, dev set)."""
    sets: tuple[list[Question], list[Question]] = ([], [])
    for article in squad["data"]:
        paragraphs = article["paragraphs"]
        for part, half in enumerate((paragraphs[: len(paragraphs) // 2], paragraphs[len(paragraphs) // 2 :])):
            texts = [" ".join(each["question"].split()) for paragraph in half for each in paragraph["qas"]]
            if part == 0:
                texts = [texts[i * len(texts) // train] for i in range(train)] if len(texts) > train else texts
            sets[part].extend(Question(text, article["title"]) for text in texts if text)
    return sets


def bags_of_words(train: list[Question], dev: list[Question]) -> dict[str, float]:
    """The accuracy of each bag on the dev set, in percent."""
    with extras.needed("pip install '.[downstream]'"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.naive_bayes import ComplementNB
        from sklearn.pipeline import FeatureUnion, Pipeline
        from sklearn.svm import LinearSVC

    words, pairs = (TfidfVectorizer(ngram_range=(1, longest), sublinear_tf=True) for longest in (1, 2))
    parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    bags = {"words": [words, pairs], "words and their parts": [FeatureUnion([("words", words), ("parts", parts)])]}
    classifiers = (
        {"classifier": [LogisticRegression(max_iter=1000)], "classifier__C": [1, 10, 100, 1000]},
        {"classifier": [LinearSVC()], "classifier__C": [0.1, 0.3, 1, 3]},
        {"classifier": [ComplementNB()], "classifier__alpha": [0.03, 0.1, 0.3, 1]},
    )
    found = {}
    for name, features in bags.items():
        grid = [{"features": features, **classifier} for classifier in classifiers]
        search = GridSearchCV(Pipeline([("features", words), ("classifier", LinearSVC())]), grid, cv=_PARTS)
        search.fit([question.text for question in train], [question.article for question in train])
        accuracy = search.score([question.text for question in dev], [question.article for question in dev])
        found[name] = 100 * float(accuracy)
    return found


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("squad", "output"), "try --squad=dev-v1.1.json.xz --output=topics, or --help")
    settings.check_value("--train", chosen["train"], settings.at_least(_PARTS))
    path, output = Path(chosen["squad"]), Path(chosen["output"])
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        try:
            sets = split(json.load(file), chosen["train"])
        except (ValueError, KeyError, TypeError, lzma.LZMAError) as error:
            reason = errors.first_line(error)
            raise errors.UserError(f"{path} is not a file of SQuAD ({reason}); download it again") from error
    output.mkdir(parents=True, exist_ok=True)
    for name, questions in zip(("train", "dev"), sets, strict=True):
        lines = [f"{question.text}\t{question.article}" for question in questions]
        write_whole(output / f"{name}.tsv", "\n".join(["question\tlabel", *lines, ""]))
    train, dev = sets
    articles = len({question.article for question in train})
    print(f"{articles} articles, {len(train):,} questions to train on, {len(dev):,} to test", flush=True)
    for name, accuracy in bags_of_words(train, dev).items():
        print(f"accuracy of a bag of {name}: {accuracy:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
