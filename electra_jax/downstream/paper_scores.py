"""Scores from the ELECTRA paper (arXiv 2003.10555, tables 1 and 2): GLUE dev averages of eight tasks, without WNLI."""

from typing import NamedTuple

from electra_jax.flops import paper_runs

# Maps names in flops/paper_runs.py to (plot label, score). The FLOPs that the paper prints for ELECTRA-Small
# are those with a generator of width 128.
_SCORES = {
    "elmo": ("ELMo", 71.2),
    "gpt": ("GPT", 78.8),
    "bert_small": ("BERT-Small", 75.1),
    "bert_base": ("BERT-Base", 82.2),
    "electra_small_128 6.25%": ("ELECTRA-Small, 6.25%", 74.1),
    "electra_small_128 12.5%": ("", 76.0),
    "electra_small_128 25%": ("", 77.7),
    "electra_small_128 50%": ("", 79.0),
    "electra_small_128 100%": ("ELECTRA-Small, all steps", 79.9),
    "electra_base": ("ELECTRA-Base", 85.1),
    "bert_large": ("BERT-Large", 84.0),
    "bert_large 464k x 2048": ("BERT-Large, ours", 87.2),
    "electra_400k": ("ELECTRA-400K", 89.0),
    "electra_1.75M": ("ELECTRA-1.75M", 89.5),
    "roberta": ("RoBERTa", 88.9),
    "xlnet": ("XLNet", 89.1),
}


class PaperScore(NamedTuple):
    """Score of a run of the paper.

    Attributes:
      name: the run's label in a plot; empty for runs between two labeled ones.
      flops: pre-training FLOPs.
      score: the GLUE average.
    """

    name: str
    flops: float
    score: float


def paper_scores(accounting: str) -> list[PaperScore]:
    """Returns the runs whose FLOPs are known in an accounting, `flops` or `flops_paper`."""
    scores = []
    for run in (*paper_runs.RUNS, *paper_runs.OTHERS):
        # `paper_runs` also counts runs without a score here, such as T5.
        if run.name in _SCORES:
            name, score = _SCORES[run.name]
            # ELMo and XLNet have no `model` count: they are not transformers of this package's kind.
            flops = run.paper() if accounting == "flops_paper" else run.model()
            if flops is not None:
                scores.append(PaperScore(name, flops, score))
    return scores
