import json
import re

import pytest
import tiny_models

from electra_jax.loading.huggingface import card

BERT = tiny_models.network().config.encoder
MADE = card.RunDescription(
    "electra",
    "detection everywhere",
    "ELECTRA, table 1",
    "the probability",
    False,
    128,
    [("steps", "12 of 20"), ("tokens seen", "3.2M")],
    {"mlm_loss": 3.25, "unigram_entropy": 5.5},
    {"steps": 20},
)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta"])
@pytest.mark.parametrize("head", ["discriminator_head", "mlm_head", None])
def test_a_card_says_how_it_is_used_and_how_it_was_made(kind, head):
    text = card.write_card(MADE, "there", tiny_models.network(kind).config.encoder, head, "[MASK]")
    front, _, rest = text.removeprefix("---\n").partition("---\n")
    assert "library_name: transformers" in front
    code = re.search(r"```python\n(.*?)```", rest, re.DOTALL)[1]
    compile(code, "card", "exec")
    assert "'there'" in code
    assert "| steps | 12 of 20 |" in rest
    assert "more than 128 tokens" in rest
    assert ("`truncation=True`" in rest) == (kind == "bert")
    assert "| mlm loss | 3.25 |" in rest
    assert json.loads(re.search(r"```json\n(.*?)```", rest, re.DOTALL)[1]) == {"steps": 20}
    assert ("[MASK]" in code) == (head == "mlm_head")
    assert ("for every token: the probability" in code) == (head == "discriminator_head")


def test_scores_of_fine_tunings_are_a_table():
    assert "Scores after" not in card.write_card(MADE, "there", BERT, None, "[MASK]")
    made = MADE._replace(downstream=[card.TaskScore("sst2", "accuracy", 78.25, 77.0, 79.0, 3, "rate 1e-3")])
    assert "| sst2 | accuracy | 78.2 | 77.0 to 79.0 | 3 | rate 1e-3 |" in card.write_card(
        made, "there", BERT, None, "[MASK]"
    )


def test_a_generator_is_not_to_be_fine_tuned():
    assert "Fine-tune it to" in card.write_card(MADE, "encoder", BERT, None, "[MASK]")
    assert "Fine-tune it to" not in card.write_card(MADE, "generator", BERT, "mlm_head", "[MASK]")


def test_without_numbers_it_says_so():
    assert "These weights were not evaluated" in card.write_card(
        MADE._replace(heldout={}), "there", BERT, None, "[MASK]"
    )


def test_a_model_that_reads_fakes_is_not_asked_to_fill_masks():
    for reads_masks in (True, False):
        made = MADE._replace(reads_masks=reads_masks)
        text = card.write_card(made, "masked_lm", BERT, "mlm_head", "[MASK]")
        assert ("fill-mask" in text) == reads_masks
