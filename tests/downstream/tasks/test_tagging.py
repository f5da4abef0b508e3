import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.tasks import tagging
from electra_jax.downstream.tasks.chunks import find_chunks, mark_chunks
from electra_jax.downstream.tasks.conll import Sentence
from electra_jax.downstream.tasks.tagging import Tagging
from electra_jax.downstream.tasks.task import IGNORED, BadRows

TEXT = "Germany and France sent the lamb to a Brussels market in May . #"
WORDS = TEXT.split()
NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TRAIN = "-DOCSTART- -X- O\n\nGermany NNP B-LOC\nsent VBD O\n\nFrance NNP B-LOC\n. . O\n"


def tagger(labels=NAMES, words=0, tags=-1):
    return Tagging(labels=labels, words=words, tags=tags)


@pytest.fixture(scope="module")
def pieces():
    chosen = {"vocab_size": 33}
    return vocabulary_training.train([" ".join(WORDS[n % 14 :]) for n in range(100)], CorpusConfig(**chosen))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.txt").write_text(TRAIN)
    (tmp_path / "dev.txt").write_text(TRAIN)
    return tmp_path


def read(folder, text, strict=True, name="dev.txt", **columns):
    (folder / name).write_text(text)
    bad_rows = BadRows(strict)
    task = tagger(**columns)
    return task.read(str(folder), name.partition(".")[0], bad_rows), bad_rows.problems


def test_columns_of_conll_2003(folder):
    task = tagging.make_task(str(folder), 0, -1)
    assert task.labels == ("O", "B-LOC")
    assert (task.kind, task.outputs, task.main_metric, task.name) == ("tagging", 2, "f1", "tags")
    assert task.read(str(folder), "dev", BadRows()) == [
        Sentence(("Germany", "sent"), ("B-LOC", "O")),
        Sentence(("France", "."), ("B-LOC", "O")),
    ]
    speech = tagging.make_task(str(folder), 0, 1)
    assert speech.labels == (".", "NNP", "VBD")
    assert speech.main_metric == "accuracy"


def conllu(*rows, end="\n\n"):
    """A sentence of (ID, form, tag), with the ten columns of CoNLL-U."""
    lines = [f"{id_}\t{form}\t_\t{tag}\t_\t_\t_\t_\t_\tSpaceAfter=No" for id_, form, tag in rows]
    return "# text = any\n" + "\n".join(lines) + end


JARDIN = conllu(("1", "va", "VERB"), ("2-3", "au", "_"), ("2", "à", "ADP"), ("3", "le", "DET"), ("3.1", "_", "_"))
WORDS_OF_JARDIN = Sentence(("va", "à", "le"), ("VERB", "ADP", "DET"))


@pytest.mark.parametrize("name", ["dev.conllu", "dev.conll", "dev.tsv"])
def test_ranges_and_empty_nodes_of_conll_u_are_no_words(folder, name):
    (folder / "dev.txt").unlink()
    text = "\ufeff" + JARDIN + conllu(("0.1", "_", "_"), ("1-2", "des", "_"), ("1", "#", "X"), ("2", "les", "DET"))
    labels = ("ADP", "DET", "VERB", "X")
    expected = [WORDS_OF_JARDIN, Sentence(("#", "les"), ("X", "DET"))]
    for each in (text, text.rstrip("\n"), text.replace("\n", "\r\n"), text.replace("\n\n", "\n \n")):
        assert read(folder, each, name=name, words=1, tags=3, labels=labels) == (expected, [])
    features = read(folder, text, name=name, words=1, tags=-1, labels=("SpaceAfter=No",))[0]
    assert [sentence.words for sentence in features] == [sentence.words for sentence in expected]


def test_rows_that_are_no_words_make_no_class(folder):
    (folder / "train.txt").write_text(JARDIN)
    assert tagging.make_task(str(folder), 1, 3).labels == ("ADP", "DET", "VERB")


@pytest.mark.parametrize("text", ["1 Germany B-LOC\n2 sent O\n", "#\tsource\n1\tGermany\tB-LOC\tO\n2\tsent\tO\tO\n"])
def test_ids_are_recognized_in_any_number_of_columns(folder, text):
    found, _ = read(folder, text + "\n# a note\n" + text, words=1, tags=2)
    assert found == [Sentence(("Germany", "sent"), ("B-LOC", "O"))] * 2
    with pytest.raises(UserError, match=r"dev.txt has IDs of words in its first column.*config.task.words to"):
        read(folder, text, words=0)
    with pytest.raises(UserError, match=r"expected config.task.tags to be another column"):
        read(folder, text, words=1, tags=0)


def test_an_id_that_is_none_is_a_bad_row(folder):
    (folder / "dev.txt").unlink()
    text = JARDIN + JARDIN.replace("2-3", "2–3") + JARDIN
    settings = {"name": "dev.conllu", "words": 1, "tags": 3, "labels": WORDS_OF_JARDIN.tags}
    with pytest.raises(UserError, match=r"dev.conllu:10: the ID is '2–3', expected a number, a range such as 3-4, or"):
        read(folder, text, **settings)
    found, problems = read(folder, text, strict=False, **settings)
    assert (found, len(problems)) == ([WORDS_OF_JARDIN] * 2, 1)


@pytest.mark.parametrize("first", ["1", "3-4", "5.1", "# 3"])
def test_where_no_column_counts_words_numbers_are_words(folder, first):
    found, _ = read(folder, f"{first}\tO\n2\tO\n\nsent\tO\n\nfor\tO\n5.1\tO\n")
    assert [sentence.words for sentence in found] == [(first, "2"), ("sent",), ("for", "5.1")]


def test_integer_tags_are_in_numeric_order(folder):
    (folder / "train.txt").write_text("Germany 10\nsent 2\nthe O\nlamb 1\n")
    assert tagging.make_task(str(folder), 0, -1).labels == ("O", "1", "2", "10")


def test_a_word_that_begins_with_a_hash_is_no_comment(folder):
    found, _ = read(folder, "# id 7\n#Germany B-LOC\n# O\nsent O\n")
    assert found == [Sentence(("#Germany", "#", "sent"), ("B-LOC", "O", "O"))]


def test_a_test_set_needs_no_tags(folder):
    (folder / "test.txt").write_text("Germany\nsent\n\nFrance NNP\n")
    found = tagger().read(str(folder), "test", BadRows())
    assert found == [Sentence(("Germany", "sent"), None), Sentence(("France",), None)]


@pytest.mark.parametrize(
    ("line", "columns", "what"),
    [
        ("Germany", {}, "1 columns, expected at least 2"),
        ("Germany O", {"tags": 2}, "2 columns, expected at least 3"),
        ("Germany O", {"words": 1}, "2 columns, expected at least 3"),
        ("Germany B-XYZ", {}, "column -1 is 'B-XYZ', expected one of B-LOC, B-PER, I-LOC, I-PER, O"),
        ("\tO", {}, "no word in column 0"),
        ("Germany\t", {}, "column -1 is '', expected one of B-LOC"),
    ],
)
def test_rows_that_cannot_be_used(folder, line, columns, what):
    good = "France O O O\nsent O O O\n"
    text = f"{good}\n{good}{line}\n\n{good}"
    with pytest.raises(UserError) as error:
        read(folder, text, **columns)
    assert str(error.value).startswith(f"{folder}/dev.txt:6: {what}")
    found, places = read(folder, text, strict=False, **columns)
    assert len(found) == 2  # not the sentence with the row
    assert [place.startswith(f"{folder}/dev.txt:6: {what}") for place in places] == [True]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_sentence_with_a_line_that_is_no_text_is_left_out_whole(folder, lost):
    lines = [b"Germany O", b"sent O", b"France O"]
    lines[lost] = b"caf\xe9 O"
    good = b"market O\n"
    for after in (b"\n\n" + good, b"\n", b""):
        (folder / "dev.txt").write_bytes(good + b"\n" + b"\n".join(lines) + after)
        bad_rows = BadRows(strict=False)
        found = tagger().read(str(folder), "dev", bad_rows)
        assert [sentence.words for sentence in found] == [("market",)] * (2 if good in after else 1)
        (problem,) = bad_rows.problems
        assert problem.startswith(f"{folder}/dev.txt:{3 + lost}: byte 0xe9 in column 4 is not valid UTF-8 (convert")


def test_headings_are_no_sentence(folder):
    (folder / "train.txt").write_text("word NER\nOslo B-LOC\n\nis O\n")
    with pytest.raises(UserError, match="begins with the headings 'word' and 'NER': expected a word and its tag"):
        tagging.make_task(str(folder), 0, -1)


def test_a_no_break_space_is_within_a_word(folder):
    found, _ = read(folder, "10\u00a0000  O\n")
    assert found == [Sentence(("10\u00a0000",), ("O",))]


def test_files_that_cannot_be_used(folder):
    with pytest.raises(UserError, match=r"dev.txt has no sentence to use: expected one word per line"):
        read(folder, "\n\n-DOCSTART- O\n")
    with pytest.raises(UserError, match=r"dev.txt has no sentence to use \(1 rows left out, .*dev.txt:1: 1 columns"):
        read(folder, "Germany\n", strict=False)
    with pytest.raises(UserError, match=r"config.task.words and config.task.tags are both 2"):
        read(folder, "a b c\n", words=2, tags=2)
    (folder / "train.txt").write_text("Germany O\nsent O\n")
    with pytest.raises(
        UserError, match=r"train.txt has 1 tags in column -1: expected two or more; set config.task.tags"
    ):
        tagging.make_task(str(folder), 0, -1)
    (folder / "train.txt").unlink()
    with pytest.raises(
        UserError, match=r"has no train.txt or train.conll or train.conllu or train.tsv; set --data_dir"
    ):
        tagging.make_task(str(folder), 0, -1)


def test_the_first_piece_of_a_word_has_its_target(pieces):
    example = Sentence(("Germany", "marketing", "sent"), ("B-LOC", "O", "I-LOC"))
    rows = tagger().encode([example], pieces, 64, train=True)
    first, second, third = pieces.encode(list(example.words))
    (ids,), (target,) = rows.input_ids, rows.targets["target"]
    assert ids == [pieces.special.cls, *first, *second, *third, pieces.special.sep]
    expected = [IGNORED] * len(ids)
    for at, label in ((1, 1), (1 + len(first), 0), (1 + len(first) + len(second), 2)):
        expected[at] = label
    assert target.tolist() == expected
    batch = rows.make_batch([0], 2, 32, pieces.special)
    assert batch.targets["target"][0, len(ids) :].tolist() == [IGNORED] * (32 - len(ids))
    assert rows.second == [len(ids)]


def test_a_word_that_is_no_piece_is_unknown(pieces):
    example = Sentence(("\u200b", "sent"), ("O", "B-LOC"))
    rows = tagger().encode([example], pieces, 64, train=True)
    assert rows.input_ids[0][1] == pieces.special.unk
    assert rows.targets["target"][0][1:3].tolist() == [0, 1]


def test_byte_level_words_after_the_first_have_their_space():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator([TEXT, "a a"] * 20, trainer)
    found = tokenizer.Library(model.to_str().encode())
    rows = tagger().encode([Sentence(tuple(WORDS), None)], found, 128, train=False)
    assert rows.input_ids[0][1:-1] == found.encode([TEXT])[0]
    assert all(found.word_starts[rows.input_ids[0][i]] for i in rows.extra[0][1:])


def test_sentences_with_a_word_that_is_cut_are_counted(pieces):
    examples = [Sentence(("markets" * 9, "markets" * 9), None), Sentence(("sent",), None)]
    assert tagger().encode(examples, pieces, 8, train=False).cut == 1
    assert tagger().encode(examples, pieces, 128, train=False).cut == 0


SENTENCES = st.lists(st.lists(st.sampled_from([*WORDS, "\u200b", "markets" * 9]), min_size=1, max_size=30), min_size=1)


@given(SENTENCES, st.integers(3, 20), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_no_word_is_lost_in_rows_and_answers(pieces, sentences, length, random):
    task = tagger()
    examples = [Sentence(tuple(words), tuple(random.choice(NAMES) for _ in words)) for words in sentences]
    rows = task.encode(examples, pieces, length, train=False)
    assert max(rows.lengths()) <= length
    assert sum(int(np.sum(target != IGNORED)) for target in rows.targets["target"]) == sum(map(len, sentences))
    scores = [np.eye(len(NAMES))[np.maximum(target, 0)] for target in rows.targets["target"]]
    answers = task.answer({"scores": scores}, rows, examples)
    assert answers == [list(example.tags) for example in examples]
    assert task.score(examples, answers)["accuracy"] == 100
    unseen = [Sentence(example.words, None) for example in examples]
    rows = task.encode(unseen, pieces, length, train=False)
    assert rows.targets == {}
    assert task.answer({"scores": scores}, rows, unseen) == answers


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-X I-X O B-Y", [("X", 0, 2), ("Y", 3, 4)]),  # IOB2
        ("I-X I-X O I-Y B-Y", [("X", 0, 2), ("Y", 3, 4), ("Y", 4, 5)]),  # IOB1
        ("B-X E-X S-Y B-X I-X E-X", [("X", 0, 2), ("Y", 2, 3), ("X", 3, 6)]),  # BIOES
        ("B-X L-X U-Y B-X I-X L-X", [("X", 0, 2), ("Y", 2, 3), ("X", 3, 6)]),  # BILOU
        ("B-X I-Y I-Y", [("X", 0, 1), ("Y", 1, 3)]),
        ("E-X I-X E-X", [("X", 0, 1), ("X", 1, 3)]),
        ("S-X I-X", [("X", 0, 1), ("X", 1, 2)]),
        ("O E-X", [("X", 1, 2)]),
        ("B-X B-X", [("X", 0, 1), ("X", 1, 2)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("X X Y O X", [("X", 0, 2), ("Y", 2, 3), ("X", 4, 5)]),
        ("O O", []),
        ("", []),
    ],
)
def test_chunks_of_every_scheme(tags, expected):
    assert list(find_chunks(tags.split())) == expected


@given(st.lists(st.tuples(st.sampled_from("XYO"), st.integers(1, 4))))
def test_chunks_are_those_that_were_written(parts):
    iob2, bioes, expected = [], [], []
    for kind, length in parts:
        if kind == "O":
            iob2 += ["O"] * length
            bioes += ["O"] * length
            continue
        expected.append((kind, len(iob2), len(iob2) + length))
        iob2 += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
        middle = [f"B-{kind}"] + [f"I-{kind}"] * (length - 2) + [f"E-{kind}"]
        bioes += middle if length > 1 else [f"S-{kind}"]
    assert list(find_chunks(iob2)) == list(find_chunks(bioes)) == expected


def test_tags_of_words_are_no_chunks():
    """XPOS of the PROIEL treebanks, and a name with a hyphen."""
    assert not any(map(mark_chunks, (["A-", "Df", "I-", "S-"], ["E-mail", "Letter"], ["B", "I"])))
    assert all(map(mark_chunks, (["B-PER", "O"], ["I-PER", "I-ORG"], ["S-X", "O"], ["B", "I", "O"])))


def test_scores_are_of_chunks_and_of_words():
    tags = ["B-PER", "I-PER", "O", "B-LOC", "O"]
    said = ["B-PER", "I-PER", "B-LOC", "O", "O"]
    examples = [Sentence(("w",) * 5, tuple(tags)), Sentence(("w",), ("O",))]
    scores = tagger().score(examples, [said, ["B-LOC"]])
    assert scores == pytest.approx({"f1": 100 * 2 / 5, "precision": 100 / 3, "recall": 50, "accuracy": 50})
    nothing = tagger().score(examples[1:], [["O"]])
    assert nothing == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 100}


@pytest.mark.parametrize(
    ("labels", "main"),
    [
        (NAMES, "f1"),
        (("O", "B", "I"), "f1"),
        (("S-X", "O"), "f1"),
        (("-LRB-", "NN", "PRP$", "X"), "accuracy"),
        (("O", "LOC"), "accuracy"),
    ],
)
def test_the_main_score_is_by_the_tags(labels, main):
    assert tagger(labels).main_metric == main


def test_answers_are_written_beside_the_words(tmp_path):
    examples = [Sentence(("New York", "sent"), None), Sentence(("Löwe",), None)]
    tagger().write(tmp_path / "test", examples, [["B-LOC", "O"], ["O"]])
    assert (tmp_path / "test.txt").read_text(encoding="utf-8") == "New York\tB-LOC\nsent\tO\n\nLöwe\tO\n"
