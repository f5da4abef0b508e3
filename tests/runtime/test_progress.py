import io

import pytest
from rich.console import Console

from electra_jax.runtime.progress import Live, heldout_line, short

NUMBERS = {"mlm_loss": 4.25, "disc_loss": 0.3, "tokens_per_second": 18234.0, "total_flops": 3.2e12}
HELDOUT = {
    "mlm_loss": 4.0,
    "unigram_entropy": 6.0,
    "disc_loss": 0.33,
    "constant_entropy": 0.35,
    "disc_auc": 0.66,
    "unigram_auc": 0.8,
}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (18234, "18.23k"), (3.2e12, "3.2T"), (6.43e19, "64.3E"), (1e24, "1000Z")],
)
def test_short_numbers(number, text):
    assert short(number) == text


def watch(**console) -> str:
    out = io.StringIO()
    with Live(Console(file=out, width=150, **console)) as live:
        live.start(0, 40)
        live.advance(5)
        live.logged(10, 40, NUMBERS)
        live.evaluated(10, HELDOUT)
    return out.getvalue()


def test_without_a_terminal_each_logged_step_is_a_line():
    assert watch().splitlines() == [
        "step 10/40 (25%) · MLM 4.25 · detection 0.3 · 18.23k tok/s · 3.2TFLOP",
        "step 10 held out: MLM loss 4.000 (unigram 6.000) · detection loss 0.330 (constant 0.350) · "
        "AUC 0.660 own fakes, 0.800 unigram fakes",
    ]


def test_on_a_terminal_a_bar_shows_step_share_losses_speed_flops_and_time():
    shown = watch(force_terminal=True)
    for part in ("step 10/40", "25%", "MLM 4.25", "detection 0.3", "18.23k tok/s", "3.2TFLOP", "left", "held out"):
        assert part in shown


def test_a_line_names_what_a_system_measures_and_nothing_else():
    nan = float("nan")
    assert heldout_line({"mlm_loss": 4.0, "unigram_entropy": 6.0}) == "MLM loss 4.000 (unigram 6.000)"
    assert heldout_line({"mlm_loss": 4.0, "disc_loss": nan, "disc_auc": nan}) == "MLM loss 4.000"
    electric = {"cloze_loss": 5.0, "nce_loss": 0.25, "nce_auc": 0.7, "unigram_auc": 0.75, "constant_entropy": 0.375}
    assert heldout_line(electric) == (
        "cloze loss 5.000 · noise-contrastive loss 0.250 (constant 0.375) · AUC 0.700 own noise, 0.750 unigram fakes"
    )
