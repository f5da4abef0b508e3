import pytest

from electra_jax.config.errors import UserError
from electra_jax.downstream import curves
from electra_jax.downstream.paper_scores import paper_scores
from electra_jax.loading import run_checkpoint
from electra_jax.runtime import run_log


def keep(monkeypatch, *steps):
    """Makes all runs have checkpoints of these steps."""
    monkeypatch.setattr(run_checkpoint, "saved_steps", lambda workdir: list(steps))


def line(step, **more):
    return {"step": step, "total_flops": 10.0 * step, "total_flops_paper": 20.0 * step, "total_tokens": step, **more}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    logged = [line(step, **({"heldout_mlm_loss": 5.0 - step} if step % 2 == 0 else {})) for step in range(1, 9)]
    return run_log.RunLog("a", tmp_path, {"objective": {"name": "mlm"}}, logged, {})


@pytest.mark.parametrize(
    ("kept", "asked", "steps"),
    [
        ((1, 2, 3, 8), 0, (1, 2, 3, 8)),
        ((1, 2, 3, 8), 1, (8,)),
        ((1, 2, 3, 8), 2, (3, 8)),
        ((1, 2, 3, 4, 5, 6, 7, 8), 4, (1, 2, 4, 8)),
        ((5, 6, 7, 8), 3, (5, 8)),  # 5 is the nearest to both 4 and 2
        ((1, 2), 5, (1, 2)),
        ((2, 9), 0, (2,)),  # nothing is logged of 9 yet
    ],
)
def test_checkpoints(run, monkeypatch, kept, asked, steps):
    keep(monkeypatch, *kept)
    assert curves.select_checkpoints(run, asked).steps == steps


def test_a_run_without_checkpoints(run, monkeypatch):
    keep(monkeypatch)
    with pytest.raises(UserError, match=r"has no checkpoint of a step in metrics\.jsonl; wait until"):
        curves.select_checkpoints(run)


def test_what_is_counted_and_held_out(run, monkeypatch):
    keep(monkeypatch, 2, 4)
    measured = curves.select_checkpoints(run)
    assert measured.compute(4) == {"flops": 40.0, "flops_paper": 80.0, "tokens": 4}
    assert measured.heldout()[0] == {
        "step": 2,
        "flops": 20.0,
        "flops_paper": 40.0,
        "tokens": 2,
        "heldout_mlm_loss": 3.0,
    }
    assert len(measured.heldout()) == 4


def row(task, seed, score, run="a", step=1):
    return {"task": task, "run": run, "step": step, "seed": seed, "score": score}


def test_the_average_is_of_seeds_that_have_every_task():
    rows = [row("cola", 0, 10.0), row("cola", 1, 20.0), row("rte", 0, 50.0), row("cola", 0, 1.0, run="b")]
    found = curves.group_by_task(rows)
    assert list(found) == ["average", "cola", "rte"]
    assert found["average"] == {"a": {1: {0: 30.0}}}
    assert found["cola"] == {"a": {1: {0: 10.0, 1: 20.0}}, "b": {1: {0: 1.0}}}
    assert list(curves.group_by_task(rows[:2])) == ["cola"]  # of one task it would be the same


def test_a_spread():
    assert curves.spread([3.0, 1.0, 2.0, 10.0]) == (2.5, 1.0, 10.0)


def test_the_papers_points():
    by_paper = {name: (operations, score) for name, operations, score in paper_scores("flops_paper")}
    # arXiv 2003.10555, table 1, as printed.
    assert by_paper["ELECTRA-Small, 6.25%"] == (pytest.approx(8.9e16, rel=0.01), 74.1)
    assert by_paper["BERT-Small"] == (pytest.approx(1.4e18, rel=0.02), 75.1)
    assert by_paper["ELMo"] == (pytest.approx(3.3e18, rel=0.04), 71.2)
    assert "ELMo" not in {name for name, *_ in paper_scores("flops")}  # which the model accounting does not cover
