import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splits import InMemory, from_lists

from electra_jax.data import batches
from electra_jax.data.records import Split
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP, Special
from electra_jax.modeling.batch import Batch

SIZES = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8)  # tokens in each line of each document
EXAMPLES = settings(max_examples=75)


def numbered(sizes):
    """Documents whose tokens are 5, 6, 7, ..., so that a token says where it is from."""
    count = itertools.count(5)
    return [[[next(count) for _ in range(size)] for size in lines] for lines in sizes]


def one_document(ids, lines):
    return Split(InMemory(ids), lines, np.array([0, len(lines) - 1]), np.array([0, 1]))


def flat(documents):
    return [token for lines in documents for line in lines for token in line]


def listed(example):
    return {name: value.tolist() for name, value in example._asdict().items()}


class Each:
    """Examples one by one."""

    def __init__(self, kind, split, length, seed=0, special=OWN):
        self.made = kind(split, length, seed, special)

    def __len__(self):
        return len(self.made)

    def __getitem__(self, index):
        return Batch(*(values[0] for values in self.made.make_batch(np.array([index]))))


SegmentPairs = functools.partial(Each, batches.SegmentPairs)
Packed = functools.partial(Each, batches.Packed)
MODES = {"pairs": SegmentPairs, "packed": Packed}


def within(count, trials, probability):
    """Five standard deviations: one false alarm in two million."""
    return abs(count - trials * probability) < 5 * (trials * probability * (1 - probability)) ** 0.5


# The reference's rule, transcribed from build_pretraining_dataset.py, its dice handed in.


def collect(lines, target):
    """How many of a document's lines the next example takes."""
    collected = 0
    for taken, line in enumerate(lines, 1):
        collected += len(line)
        if collected >= target:
            return taken
    return len(lines)


def create(lines, length, target, single, coin):
    first_target = 100_000 if single else (target - 3) // 2
    first, second = [], []
    for line in lines:
        if (
            len(first) == 0
            or len(first) + len(line) < first_target
            or (len(second) == 0 and len(first) < first_target and coin)
        ):
            first += line
        else:
            second += line
    first = first[: length - 2]
    second = second[: max(0, length - len(first) - 3)]

    ids, types = [CLS, *first, SEP], [0] * (len(first) + 2)
    if second:
        ids, types = [*ids, *second, SEP], types + [1] * (len(second) + 1)
    rest = [0] * (length - len(ids))
    return {"input_ids": ids + rest, "token_type_ids": types + rest, "sequence_ids": [1] * len(ids) + rest}


def allowed(documents, length, examples):
    """Whether some throws of the dice make these examples, in this order, of these documents."""
    queue = [lines for lines in documents if any(lines)]
    states = {(0, 0)}  # (document, line) where the next example may begin
    for example in examples:
        found = set()
        for (document, line), target in itertools.product(states, range(5, length + 1)):
            if document == len(queue):
                continue
            lines = queue[document][line:]
            taken = collect(lines, target)
            throws = itertools.product([False, True], repeat=2)
            if any(create(lines[:taken], length, target, *throw) == listed(example) for throw in throws):
                found.add((document, line + taken) if any(lines[taken:]) else (document + 1, 0))
        states = found
    return (len(queue), 0) in states


@given(SIZES, st.integers(5, 24), st.integers(0, 9))
@EXAMPLES
def test_pairs_are_made_by_the_reference_s_rule(sizes, length, seed):
    documents = numbered(sizes)
    examples = SegmentPairs(from_lists(documents), length, seed)
    assert allowed(documents, length, [examples[i] for i in range(len(examples))])


def test_line_alone_is_one_segment_and_is_cut_to_the_length():
    examples = SegmentPairs(from_lists([[[7, 8, 9]], [[11, 12, 13, 14, 15, 16, 17]]]), length=7, seed=0)
    assert [listed(examples[i]) for i in range(len(examples))] == [
        {
            "input_ids": [CLS, 7, 8, 9, SEP, PAD, PAD],
            "token_type_ids": [0, 0, 0, 0, 0, 0, 0],
            "sequence_ids": [1, 1, 1, 1, 1, 0, 0],
        },
        {
            "input_ids": [CLS, 11, 12, 13, 14, 15, SEP],
            "token_type_ids": [0, 0, 0, 0, 0, 0, 0],
            "sequence_ids": [1, 1, 1, 1, 1, 1, 1],
        },
    ]


def test_two_lines_are_a_pair_or_one_time_in_ten_one_segment():
    examples = SegmentPairs(from_lists([[[7, 8, 9], [10, 11]]] * 300), length=9, seed=0)
    pair = {
        "input_ids": [CLS, 7, 8, 9, SEP, 10, 11, SEP, PAD],
        "token_type_ids": [0, 0, 0, 0, 0, 1, 1, 1, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 1, 1, 1, 0],
    }
    single = {
        "input_ids": [CLS, 7, 8, 9, 10, 11, SEP, PAD, PAD],
        "token_type_ids": [0, 0, 0, 0, 0, 0, 0, 0, 0],
        "sequence_ids": [1, 1, 1, 1, 1, 1, 1, 0, 0],
    }
    assert len(examples) == 300
    assert [listed(examples[i]) in (pair, single) for i in range(300)] == [True] * 300
    assert within(sum(listed(examples[i]) == single for i in range(300)), 300, 0.1)


def test_shares_of_single_segments_short_targets_and_coins():
    # In one long document of one-token lines every target is met exactly, so each throw of the dice can be read off.
    length, T = 16, 400_000
    bounds = np.arange(T + 1)
    examples = SegmentPairs(one_document(np.full(T, 7, np.uint16), bounds), length, seed=0)
    n = len(examples)
    assert n > T // length
    batch = examples.made.make_batch(np.arange(n))
    tokens = (batch.input_ids == 7).sum(axis=1)
    in_b = ((batch.input_ids == 7) & (batch.token_type_ids == 1)).sum(axis=1)

    assert within((in_b == 0).sum(), n, 0.1)
    for target in range(5, length - 3):  # a longer one cannot be told from a cut one
        assert within((tokens == target).sum(), n, 0.05 / (length - 4))
    assert within((tokens < length - 3).sum(), n, 0.05 * (length - 8) / (length - 4))
    assert tokens[:-1].min() == 5  # the last is what remains
    # The coin is asked for the line that would take A to its target, here (16 - 3) // 2 for all but a few.
    in_a = (tokens - in_b)[(in_b > 0) & (tokens == length - 3)]
    asked = in_a[in_a >= 5]
    assert set(asked.tolist()) == {5, 6}
    assert abs((asked == 6).mean() - 0.5) < 0.03


def test_seed_decides_the_pairs():
    split = from_lists(numbered([[3] * 40] * 40))
    pairs = [SegmentPairs(split, 24, seed) for seed in (0, 0, 1)]
    first, again, other = ([listed(examples[i]) for i in range(len(examples))] for examples in pairs)
    assert first == again
    assert first != other


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_examples_are_new_arrays_of_int32_of_the_length(mode, dtype):
    split = from_lists([[[7, 8], [9]], [[10, 11, 12, 13]]], dtype=dtype)
    examples = MODES[mode](split, 8, 0)
    kinds = {name: (value.shape, value.dtype) for name, value in examples[0]._asdict().items()}
    assert kinds == dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids"), ((8,), np.dtype(np.int32)))
    examples[0].input_ids[:] = 0
    assert examples[0].input_ids.tolist()[:2] == [CLS, 7]
    assert split.tokens.take(np.array([0]), np.array([1])) == [7]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("documents", [[], [[]], [[[]], [[], []]]])
def test_no_tokens_give_no_examples(mode, documents):
    assert len(MODES[mode](from_lists(documents), 8, 0)) == 0


def test_packed_small_example():
    documents = [[[11, 12], [13]], [[21]], [], [[31, 32, 33, 34, 35, 36, 37], [38, 39]], [[41, 42, 43, 44]]]
    examples = Packed(from_lists(documents), length=9, seed=0)
    assert [examples[i].input_ids.tolist() for i in range(len(examples))] == [
        [CLS, 11, 12, 13, SEP, CLS, 21, SEP, PAD],
        [CLS, 31, 32, 33, 34, 35, 36, 37, SEP],
        [CLS, 38, 39, SEP, CLS, 41, 42, 43, SEP],
        [CLS, 44, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
    ]
    assert [examples[i].sequence_ids.tolist() for i in range(len(examples))] == [
        [1, 1, 1, 1, 1, 2, 2, 2, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 2, 2, 2, 2, 2],
        [1, 1, 1, 0, 0, 0, 0, 0, 0],
    ]
    assert not any(examples[i].token_type_ids.any() for i in range(len(examples)))


@given(SIZES, st.integers(5, 24))
@EXAMPLES
def test_packed_loses_doubles_and_reorders_nothing(sizes, length):
    documents = numbered(sizes)
    examples = Packed(from_lists(documents), length, 0)
    tokens = [token for i in range(len(examples)) for token in examples[i].input_ids.tolist()]
    assert [token for token in tokens if token > SEP] == flat(documents)


@given(SIZES, st.integers(5, 24))
@EXAMPLES
def test_packed_rows_are_full_with_sequences_of_cls_piece_sep_of_one_document_each(sizes, length):
    documents = numbered(sizes)
    home = {token: number for number, lines in enumerate(documents) for line in lines for token in line}
    examples = Packed(from_lists(documents), length, 0)
    for i in range(len(examples)):
        ids, sequences = examples[i].input_ids, examples[i].sequence_ids
        used = sequences > 0
        assert used.sum() >= (length - 2 if i < len(examples) - 1 else 3)
        assert used[: used.sum()].all()
        np.testing.assert_array_equal(ids != PAD, used)
        homes = []
        for number in range(1, sequences.max() + 1):
            first, *piece, last = ids[sequences == number].tolist()
            assert (first, last) == (CLS, SEP)
            (document,) = {home[token] for token in piece}
            homes.append(document)
        assert homes == sorted(set(homes))


@pytest.mark.parametrize("mode", MODES)
@given(SIZES, st.integers(5, 24), st.integers(0, 9), st.data())
@EXAMPLES
def test_a_batch_is_its_examples_whatever_their_order(mode, sizes, length, seed, data):
    examples = MODES[mode](from_lists(numbered(sizes)), length, seed)
    if not len(examples):
        return
    order = data.draw(st.lists(st.integers(0, len(examples) - 1), min_size=1, max_size=9))
    batch = examples.made.make_batch(np.array(order))
    for row, i in enumerate(order):
        assert {name: value[row].tolist() for name, value in batch._asdict().items()} == listed(examples[i])


SOURCES = st.lists(SIZES, min_size=1, max_size=4)


@pytest.mark.parametrize("mode", MODES)
@given(SOURCES, st.integers(5, 24))
@EXAMPLES
def test_no_example_is_of_two_sources(mode, sources, length):
    documents = numbered([lines for source in sources for lines in source])
    rest = iter(documents)
    split = from_lists(*([next(rest) for _ in source] for source in sources))
    made = MODES[mode](split, length).made
    assert len(made.sources) == len(sources) + 1
    assert (made.sources[0], made.sources[-1]) == (0, len(made))
    for number, (begin, end) in enumerate(itertools.pairwise(made.sources)):
        first = sum(map(len, sources[:number]))
        own = set(flat(documents[first : first + len(sources[number])]))
        shown = made.make_batch(np.arange(begin, end)).input_ids
        tokens = set(shown[shown > SEP].tolist())
        assert tokens <= own
        assert mode == "pairs" or tokens == own


def test_groups_of_documents_are_packed_each_on_its_own(monkeypatch):
    """So that a million documents are planned at once; nothing else changes."""
    monkeypatch.setattr(batches, "_PACKED_TOGETHER", 2)
    documents = [[[11, 12, 13]], [[21]], [], [[31]], [[41, 42]]]
    ids = Packed(from_lists(documents), 9).made.make_batch(np.arange(3)).input_ids
    assert ids.tolist() == [
        [CLS, 11, 12, 13, SEP, CLS, 21, SEP, PAD],
        [CLS, 31, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
        [CLS, 41, 42, SEP, PAD, PAD, PAD, PAD, PAD],
    ]


@pytest.mark.parametrize("kind", [batches.SegmentPairs, batches.Packed])
def test_special_tokens_may_have_any_ids(kind):
    special = Special(pad=9, unk=8, cls=101, sep=102, mask=103)
    example = Each(kind, from_lists([[[1, 2, 3]]]), 7, 0, special)[0]
    assert example.input_ids.tolist() == [101, 1, 2, 3, 102, 9, 9]
