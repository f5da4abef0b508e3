import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import duplicates, pipeline
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import Document, hashed
from electra_jax.data.duplicates import DUPLICATE, NEAR_DUPLICATE, Fingerprints, SeenDocuments
from electra_jax.data.local_runner import LocalRunner


def test_exact_copies_are_found_and_empty_documents_kept():
    seen = SeenDocuments(0)
    chunks = [[b"one", b"two", b"", b"one"], [b"", b"two", b"three"]]
    found = [duplicates.fingerprints([hashed(Document("", text)) for text in chunk], 0) for chunk in chunks]
    assert [seen.find_duplicates(each) for each in found] == [{3: DUPLICATE}, {1: DUPLICATE}]
    assert all(each.signatures is None for each in found)


def similar(signature, changed, rng):
    """A signature of which so many values differ."""
    other = signature.copy()
    other[rng.choice(128, changed, replace=False)] += 1
    return other


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.75, 0.8, 0.9, 1.0]))
@settings(max_examples=40)
def test_every_document_with_enough_equal_values_is_found_and_no_other(seed, threshold):
    """The definition, by comparison with all documents that were kept."""
    rng = np.random.default_rng(seed)
    needed = math.ceil(128 * threshold)
    roots = rng.integers(0, 2**32 - 1, (3, 128), np.uint32)
    signatures = [
        similar(roots[rng.integers(3)], max(0, min(128, 128 - needed + rng.integers(-3, 4))), rng) for _ in range(40)
    ]
    kept, expected = [], {}
    for i, signature in enumerate(signatures):
        if any(np.count_nonzero(signature == other) >= needed for other in kept):
            expected[i] = NEAR_DUPLICATE
        else:
            kept.append(signature)
    digests = [i.to_bytes(8, "big") for i in range(40)]
    whole, parts = SeenDocuments(threshold), SeenDocuments(threshold)
    assert whole.find_duplicates(Fingerprints(digests, np.array(signatures))) == expected
    found = {}
    for begin in range(0, 40, 7):
        chunk = Fingerprints(digests[begin : begin + 7], np.array(signatures[begin : begin + 7]))
        found |= {begin + i: note for i, note in parts.find_duplicates(chunk).items()}
    assert found == expected


@pytest.mark.parametrize("threshold", [0.5, 0.75, 0.8, 0.9])
def test_a_document_that_differs_in_as_many_bands_as_it_can_is_found(threshold):
    differing = 128 - int(np.ceil(128 * threshold))
    signatures = np.zeros((4, 128), np.uint32)
    signatures[1, np.linspace(0, 128, differing, endpoint=False).astype(int)] = 1
    signatures[2, np.linspace(0, 128, differing + 1, endpoint=False).astype(int)] = 2
    found = SeenDocuments(threshold).find_duplicates(Fingerprints([b"one", b"two", b"three", b"two"], signatures))
    assert found == {1: NEAR_DUPLICATE, 3: DUPLICATE}


def test_the_index_grows():
    rng = np.random.default_rng(0)
    signatures = rng.integers(0, 2**32 - 1, (2500, 128), np.uint32)
    seen = SeenDocuments(0.9)
    digests = [i.to_bytes(8, "big") for i in range(5000)]
    assert seen.find_duplicates(Fingerprints(digests[:2500], signatures)) == {}
    again = seen.find_duplicates(Fingerprints(digests[2500:], signatures))
    assert again == dict.fromkeys(range(2500), NEAR_DUPLICATE)


def test_rensa_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rensa", None)
    (tmp_path / "a.txt").write_text("One.\n\nTwo.")
    config = CorpusConfig(input=str(tmp_path / "a.txt"), near_duplicates=0.8)
    with pytest.raises(UserError, match=r"near_duplicates needs rensa; pip install 'electra_jax\[near_duplicates\]'"):
        pipeline.build_corpus(tmp_path / "out", config, LocalRunner(1))


def test_signatures_never_change():
    # Literal: another version of the library must find the same documents, or a continued preparation mixes two.
    pytest.importorskip("rensa", reason="rensa is an extra")
    found = duplicates.fingerprints([Document("", b"One two three four five six."), Document("", b"")], 0.8)
    assert found.signatures.shape == (2, 128)
    assert found.signatures[0, :3].tolist() == [3276109146, 3226931997, 3537227110]
    assert found.signatures[0, -1] == 4068555460


def article(rng, words=200):
    return [f"w{number}" for number in rng.integers(0, 5000, words)]


def test_signatures_estimate_the_share_of_common_runs_of_words():
    pytest.importorskip("rensa", reason="rensa is an extra")
    rng = np.random.default_rng(1)
    errors = []
    for changed in (1, 5, 10, 20, 40) * 4:
        words = article(rng)
        other = [word if i % (200 // changed) else "other" for i, word in enumerate(words)]
        runs = [{tuple(text[i : i + 5]) for i in range(196)} for text in (words, other)]
        texts = [Document("", " ".join(text).encode()) for text in (words, [word.upper() for word in other])]
        one, two = duplicates.fingerprints(texts, 0.8).signatures
        errors.append(np.mean(one == two) - len(runs[0] & runs[1]) / len(runs[0] | runs[1]))
    assert abs(np.mean(errors)) < 0.03  # three standard deviations of the mean of 20
    assert max(map(abs, errors)) < 0.18


@pytest.mark.parametrize("workers", [1, 2])
def test_no_near_duplicate_is_left_in_the_other_split(tmp_path, workers):
    pytest.importorskip("rensa", reason="rensa is an extra")
    rng = np.random.default_rng(2)
    articles = [article(rng) for _ in range(40)]
    copies = [[*words[:100], "changed", *words[101:]] for words in articles]
    for name, texts in {"a": articles, "b": copies}.items():
        (tmp_path / f"{name}.txt").write_text("\n\n".join(" ".join(words) for words in texts))
    settings = {"input": f"{tmp_path}/[ab].txt", "vocab_size": 60, "heldout_fraction": 0.5}
    both = pipeline.prepare(tmp_path / "both", runner=LocalRunner(workers), **settings)
    assert sum(both.documents.values()) == 80
    assert NEAR_DUPLICATE not in both.notes
    report = pipeline.prepare(tmp_path / "one", runner=LocalRunner(workers), near_duplicates=0.8, **settings)
    assert sum(report.documents.values()) == 40
    assert report.notes[NEAR_DUPLICATE] == (40, f"{tmp_path}/b.txt:1")
