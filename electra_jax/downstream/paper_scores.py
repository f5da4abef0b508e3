"""The paper's own points: GLUE dev averages over eight tasks (without WNLI), arXiv 2003.10555, tables 1 and 2."""

from electra_jax.planning.flops import paper_runs

# By the names of `flops/systems.py`; of ELECTRA-Small as its operations are printed, with a generator of width 128.
_SCORES = {
    "elmo": ("ELMo", 71.2),
    "gpt": ("GPT", 78.8),
    "bert_small": ("BERT-Small", 75.1),
    "bert_base": ("BERT-Base", 82.2),
    "electra_small_128 6.25%": ("ELECTRA-Small, 6.25%", 74.1),
    "electra_small_128 12.5%": ("", 76.0),
    "electra_small_128 25%": ("", 77.7),
    "electra_small_128 50%": ("", 79.0),
    "electra_small_128 100%": ("ELECTRA-Small, all of it", 79.9),
    "electra_base": ("ELECTRA-Base", 85.1),
    "bert_large 464k x 2048": ("BERT-Large, ours", 87.2),
    "electra_400k": ("ELECTRA-400K", 89.0),
    "electra_1.75M": ("ELECTRA-1.75M", 89.5),
    "roberta": ("RoBERTa", 88.9),
    "xlnet": ("XLNet", 89.1),
}


def points(accounting: str) -> list[tuple[str, float, float]]:
    """(name, operations, score) of each run whose operations are known in `model` or `paper`; some without a name."""
    found = []
    for run in (*paper_runs.RUNS, *paper_runs.OTHERS):
        if run.name in _SCORES:
            name, score = _SCORES[run.name]
            operations = run.paper() if accounting == "paper" else run.model()
            if operations is not None:
                found.append((name, operations, score))
    return found
