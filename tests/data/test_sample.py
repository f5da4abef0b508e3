import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data.documents import Document, hashed
from electra_jax.data.sample import Sample
from electra_jax.data.shards import is_heldout


def documents(*texts):
    return [hashed(Document(f"a.txt:{number}", text.encode())) for number, text in enumerate(texts)]


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=30)


def lowest(given_documents, limit):
    """The definition: documents in the order of their hashes, until one would be too many."""
    drawn, size = [], 0
    for document in sorted(given_documents, key=lambda document: document.digest[4:]):
        size += len(document.text)
        if drawn and size > limit:
            break
        drawn.append(document.text.decode())
    return sorted(drawn)


@given(SIZES, st.integers(1, 200), st.randoms(), st.integers(1, 4))
@settings(max_examples=200)
def test_a_sample_is_the_same_whatever_the_order_and_the_parts(sizes, limit, random, parts):
    given_documents = documents(*(f"{number} " + "x" * size for number, size in enumerate(sizes)))
    numbered = list(enumerate(given_documents))
    random.shuffle(numbered)
    samples = [Sample(limit, 0.0) for _ in range(parts)]
    for i, (number, document) in enumerate(numbered):
        samples[i % parts].add((number // 7, number % 7), document)
    whole = Sample(limit, 0.0)
    for sample in samples:
        whole.merge(sample)
    lines = whole.lines()
    assert sorted(lines) == [line.strip() for line in lowest(given_documents, limit)]
    assert [int(line.split()[0]) for line in lines] == sorted(int(line.split()[0]) for line in lines)


def test_a_sample_is_drawn_from_the_whole_and_not_from_what_is_held_out():
    given_documents = documents(*(f"{number} " + "word " * 20 for number in range(2000)))
    sample = Sample(20_000, 0.5)
    for number, document in enumerate(given_documents):
        sample.add((0, number), document)
    numbers = [int(line.split()[0]) for line in sample.lines()]
    assert 180 < len(numbers) <= 200
    assert abs(np.mean(numbers) - 1000) < 5 * 577 / 190**0.5
    held = {number for number, document in enumerate(given_documents) if is_heldout(document.digest, 0.5)}
    assert not held & set(numbers)


def test_copies_of_a_document_are_drawn_once():
    """However many there are: the corpus leaves them out, too. The first of them decides on the place."""
    one, *others = documents(*(f"text {number}" for number in range(9)))
    parts = [Sample(100, 0.0) for _ in range(2)]
    for number in range(50):
        parts[number % 2].add((1, 50 - number), one)
    for number, document in enumerate(others):
        parts[0].add((0, number), document)
    parts[0].add((0, 9), hashed(Document("a.txt:9", b"")))
    parts[1].merge(parts[0])
    assert parts[1].lines() == [f"text {number}" for number in (*range(1, 9), 0)]
    assert parts[1]._drawn[one.digest][0] == (1, 1)
    assert len(parts[1]._drawn) == 9
