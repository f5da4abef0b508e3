import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import mixtures
from electra_jax.data.config import CorpusConfig
from electra_jax.data.sources import Source

SIZES = st.lists(st.integers(1, 10**13), min_size=1, max_size=100)
TEMPERATURES = st.floats(0, 1)
NAMES = st.lists(st.text("ab_/.*@: é", min_size=1, max_size=9), min_size=1, max_size=6)


@given(SIZES, TEMPERATURES)
def test_shares_are_powers_of_the_sizes(sizes, temperature):
    shares = mixtures.shares(sizes, temperature)
    assert sum(shares) == pytest.approx(1)
    for size, share in zip(sizes, shares, strict=True):
        assert share / shares[0] == pytest.approx((size / sizes[0]) ** temperature, rel=1e-9)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["en/*.txt", "de/*.txt"], ["en", "de"]),
        (["/data/cc100/en.txt.xz", "/data/cc100/zh-Hans.txt.xz"], ["en", "zh_Hans"]),
        (["hf:w/wikipedia/20231101.de:train", "hf:w/wikipedia/20231101.fy:train"], ["de", "fy"]),
        (["text", "docstrings:html,xml"], ["text", "docstrings_html_xml"]),
        (["wiki", "wiki/fy"], ["wiki", "wiki_fy"]),
        (["data/*", "data/**"], ["1_data", "2_data"]),
        (["*", "?"], ["1", "2"]),
        (["text/*.txt"], ["text_txt"]),
    ],
)
def test_labels_are_what_differs_between_the_names(names, expected):
    assert mixtures.labels(names) == expected


@given(NAMES)
def test_labels_are_different_words(names):
    labels = mixtures.labels(names)
    assert len(set(labels)) == len(labels) == len(names)
    assert all(re.fullmatch(r"\w+", label) for label in labels)


def test_a_temperature_leaves_the_sources_as_they_are():
    assert mixtures.parse(CorpusConfig(input="a;b", temperature=0.3)) == [Source("a", None), Source("b", None)]
    assert mixtures.parse(CorpusConfig(input="a@2;b@1")) == [Source("a", 2.0), Source("b", 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a@2;b@1", r"temperature=0.3 and the weights in input='a@2;b@1' cannot both be set; remove"),
        ("a/*.txt", r"temperature=0.3 has no effect on input='a/\*.txt', a single source; leave it out"),
    ],
)
def test_a_temperature_without_effect_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        mixtures.parse(CorpusConfig(input=text, temperature=0.3))
