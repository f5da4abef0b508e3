import pytest

from electra_jax.objectives import registry
from electra_jax.runtime.metric_text import format_heldout, format_logged, short_number

LOSSES = registry.SYSTEMS["electra"].losses


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0"), (999, "999"), (18234, "18.23k"), (3.2e12, "3.2T"), (6.43e19, "64.3E"), (1e24, "1000Z")),
        *((999.94, "999.9"), (999.96, "1k"), (-999_950, "-1M"), (999_940, "999.9k"), (float("nan"), "nan")),
    ],
)
def test_short_numbers(number, text):
    assert short_number(number) == text


def test_a_logged_step_shows_losses_speed_and_flops():
    metrics = {
        "mlm_loss": 4.25,
        "disc_loss": 0.3,
        "nce_loss": None,
        "tokens_per_second": 18234.0,
        "total_flops": 3.2e12,
    }
    assert format_logged(metrics, LOSSES) == "MLM 4.25 · detection 0.3 · 18.23k tok/s · 3.2TFLOP"
    assert format_logged({"mlm_loss": float("nan"), "tokens_per_second": None}, LOSSES) == "0 tok/s · 0FLOP"


def test_held_out_losses_are_shown_with_their_baselines():
    metrics = {"mlm_loss": 4.0, "unigram_entropy": 6.0, "disc_loss": 0.33, "constant_entropy": 0.35}
    assert format_heldout({**metrics, "disc_auc": 0.66, "unigram_auc": 0.8}, LOSSES) == (
        "MLM loss 4.000 (unigram 6.000) · detection loss 0.330 (constant 0.350) · AUC 0.660 own fakes, "
        "0.800 unigram fakes"
    )
    electric = {"cloze_loss": 5.0, "nce_loss": 0.25, "nce_auc": 0.7, "unigram_auc": 0.75, "constant_entropy": 0.375}
    assert format_heldout(electric, registry.SYSTEMS["electric"].losses) == (
        "cloze loss 5.000 · noise-contrastive loss 0.250 (constant 0.375) · AUC 0.700 own noise, 0.750 unigram fakes"
    )


def test_metrics_that_a_system_does_not_have_are_left_out():
    nan = float("nan")
    assert format_heldout({"mlm_loss": 4.0, "unigram_entropy": 6.0}, LOSSES) == "MLM loss 4.000 (unigram 6.000)"
    assert format_heldout({"mlm_loss": 4.0, "disc_loss": nan, "disc_auc": nan}, LOSSES) == "MLM loss 4.000"
