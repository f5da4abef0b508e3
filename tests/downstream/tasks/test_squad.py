import gzip
import json
import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.tasks import registry, squad
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.squad import Answer
from electra_jax.downstream.tasks.squad_files import Example
from electra_jax.downstream.tasks.task import BadRows

CONTEXT = "The Norse raiders came from Denmark, Iceland and Norway in the 10th century (900\u2013999). É was ½ of it!"
WORDS = CONTEXT.split()


def answering(name, **settings):
    return registry.make_task(TaskConfig(name=name, **{"threshold": 0.0, **settings}), "")


SQUAD1, SQUAD2 = answering("squad1"), answering("squad2")


@pytest.fixture(scope="module")
def pieces():
    chosen = {"vocab_size": 47, "character_coverage": 1.0}
    return vocabulary_training.train([" ".join(WORDS[n % 19 :]) for n in range(100)], CorpusConfig(**chosen))


def question(id_="q1", answers=(("Denmark", 28),), **more):
    said = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": "Where from?", "answers": said, **more}


def content(*questions):
    return json.dumps(
        {"version": "v", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}
    )


def example(text="Denmark", context=CONTEXT, impossible=False, query="Where from?"):
    answers = () if impossible else ((text, context.index(text)),)
    return Example("q1", query, context, answers, impossible)


def outputs(rows, chosen, beam=2, impossible=None):
    """What a model says that gives (row, start, end) the log-probability that they have in `chosen`, else little."""
    n = len(rows.input_ids)
    found = {
        "start_score": np.full((n, beam), -100.0, np.float32),
        "start_index": np.zeros((n, beam), np.int32),
        "end_score": np.zeros((n, beam, beam), np.float32),
        "end_index": np.zeros((n, beam, beam), np.int32),
    }
    used = [0] * n
    for (row, start, end), score in chosen.items():
        found["start_score"][row, used[row]], found["start_index"][row, used[row]] = score, start
        found["end_index"][row, used[row]] = end
        used[row] += 1
    if impossible is not None:
        found["impossible"] = np.array(impossible, np.float32)
    return found


def perfect(rows, beam=2):
    bounds = zip(rows.targets["start"].tolist(), rows.targets["end"].tolist(), strict=True)
    return outputs(
        rows, {(row, *bound): 0.0 for row, bound in enumerate(bounds)}, beam, rows.targets["impossible"] - 0.5
    )


def test_questions_of_both_versions(tmp_path):
    plain = question("q2", [("Denmark", 28), ("Iceland", 37)], is_impossible=False)
    none = question("q3", (), is_impossible=True, plausible_answers=[{"text": "Norse", "answer_start": 99}])
    (tmp_path / "train-v2.0.json").write_text(content(plain, none))
    (tmp_path / "train-v1.1.json").write_text(content(question()))
    assert SQUAD2.read(str(tmp_path), "train", BadRows()) == [
        Example("q2", "Where from?", CONTEXT, (("Denmark", 28), ("Iceland", 37)), False),
        Example("q3", "Where from?", CONTEXT, (), True),
    ]
    assert SQUAD1.read(str(tmp_path), "train", BadRows()) == [
        Example("q1", "Where from?", CONTEXT, (("Denmark", 28),), False)
    ]
    assert (SQUAD1.kind, SQUAD1.outputs, SQUAD1.main_metric) == ("answering", 1, "f1")
    assert SQUAD2.outputs == 2


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_files_may_be_packed(tmp_path, suffix, opener):
    with opener(tmp_path / f"dev.json{suffix}", "wt", encoding="utf-8") as file:
        file.write(content(question()))
    assert [found.id for found in SQUAD1.read(str(tmp_path), "dev", BadRows())] == ["q1"]


def test_a_test_set_needs_no_answers(tmp_path):
    (tmp_path / "test.json").write_text(content({"id": "q1", "question": "Where from?"}))
    assert SQUAD1.read(str(tmp_path), "test", BadRows()) == [Example("q1", "Where from?", CONTEXT, (), False)]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (question("q2", [("Denmark", 27)]), "question q2: answer_start 27 has ' Denmar', expected 'Denmark'"),
        (question("q2", [("Denmark", 28), ("it!", 99)]), "question q2: answer_start 99 has ',*', expected 'it!'"),
        (question("q2", [("Denmark", -7)]), "question q2: answer {'text': 'Denmark', 'answer_start': -7}, expected"),
        (question("q2", [("", 3)]), "question q2: answer {'text': '', 'answer_start': 3}, expected text and"),
        (question("q2", ()), "question q2: no answer, expected one, or SQuAD 2.0 (--config=squad:version=2.0)"),
        (question("q1"), "question q1: an earlier question has the same id"),
        ({"id": "q2", "question": None}, "question q2: question is None, expected a text"),
        ({"question": 3}, "question number 2: question is 3, expected a text"),
    ],
)
def test_questions_that_cannot_be_used(tmp_path, bad, what):
    (tmp_path / "dev.json").write_text(content(question(), bad))
    what = what.replace("',*'", repr(CONTEXT[99:102]))
    with pytest.raises(UserError) as error:
        SQUAD1.read(str(tmp_path), "dev", BadRows())
    assert str(error.value).startswith(f"{tmp_path}/dev.json: {what}")
    assert "\n" not in str(error.value)
    bad_rows = BadRows(strict=False)
    assert len(SQUAD1.read(str(tmp_path), "dev", bad_rows)) == 1
    assert [place.startswith(f"{tmp_path}/dev.json: {what}") for place in bad_rows.problems] == [True]


def test_no_answer_without_is_impossible_is_a_bad_row(tmp_path):
    (tmp_path / "dev.json").write_text(content(question(answers=())))
    with pytest.raises(UserError, match=r"question q1: no answer, expected one, or is_impossible; fix it"):
        SQUAD2.read(str(tmp_path), "dev", BadRows())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff{}", "is not valid JSON"),
        (b"[]", "does not have SQuAD's layout: expected data > paragraphs > context, qas"),
        (b'{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "does not have SQuAD's layout"),
        (b'{"data": "text"}', "does not have SQuAD's layout"),
        (b'{"data": []}', "has no question to use"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, data, message):
    (tmp_path / "dev.json").write_bytes(data)
    with pytest.raises(UserError, match=f"dev.json {message}"):
        SQUAD1.read(str(tmp_path), "dev", BadRows())


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_packed_files_that_are_cut_or_no_such(tmp_path, suffix):
    whole = {".gz": gzip.compress, ".xz": lzma.compress}[suffix](content(question()).encode())
    for data in (b"{}", whole[:-20]):
        (tmp_path / f"dev.json{suffix}").write_bytes(data)
        with pytest.raises(UserError, match=f"dev.json{suffix} is not valid JSON .*; download the file again"):
            SQUAD1.read(str(tmp_path), "dev", BadRows())


def test_a_folder_without_the_version_is_refused(tmp_path):
    (tmp_path / "dev-v1.1.json").write_text(content(question()))
    with pytest.raises(UserError, match=r"has no dev.json or .*dev-v2.0.json or .*; set --data_dir to the folder"):
        SQUAD2.read(str(tmp_path), "dev", BadRows())


def test_windows_as_in_run_squad():
    assert list(squad.windows(10, 10, 4)) == [(0, 10)]
    assert list(squad.windows(11, 10, 4)) == [(0, 10), (4, 7)]
    assert list(squad.windows(20, 10, 4)) == [(0, 10), (4, 10), (8, 10), (12, 8)]
    assert list(squad.windows(0, 10, 4)) == [(0, 0)]


@pytest.mark.parametrize("max_length", [30, 40, 60])
def test_an_answer_of_the_longest_kind_is_whole_in_a_window(pieces, max_length):
    """Also where the stride, 128, is longer than a row."""
    task = answering("squad1", query=12, max_answer=5)
    rows = task.encode([example()], pieces, max_length, train=False)
    tokens = len(pieces.encode([CONTEXT])[0])
    seen = [range(window.first, window.first + window.length) for window in rows.extra]
    assert all(any(first in each and first + 4 in each for each in seen) for first in range(tokens - 4))


def test_a_row_is_the_question_and_the_context(pieces):
    rows = SQUAD2.encode([example()], pieces, 128, train=True)
    query, context = pieces.encode(["Where from?", CONTEXT])
    special, at = pieces.special, len(query) + 2
    (ids,) = rows.input_ids
    assert ids == [special.cls, *query, special.sep, *context, special.sep]
    assert rows.second == [at]
    assert rows.targets["allowed"][0].tolist() == [1, *[0] * (at - 1), *[1] * len(context), 0]
    (start,), (end,) = rows.targets["start"], rows.targets["end"]
    assert pieces.decode(ids[start : end + 1]) == "denmark"
    assert rows.targets["impossible"].tolist() == [0]
    batch = rows.make_batch([0], 2, 128, special)
    assert batch.targets["allowed"][0, len(ids) :].tolist() == [-1] * (128 - len(ids))
    assert batch.targets["start"].tolist() == [start, start]
    assert {value.dtype for value in (*batch.inputs, *batch.targets.values())} == {np.dtype(np.int32)}
    assert {*SQUAD2.encode([example()], pieces, 128, train=False).targets} == {"allowed"}


def test_the_question_is_cut(pieces):
    task = answering(name="squad1", query=3)
    rows = task.encode([example(query="Where from? " * 9), example(query="in")], pieces, 128, train=False)
    ids, _ = rows.input_ids
    assert rows.cut == 1
    assert ids[1:5] == [*pieces.encode(["Where from?"])[0][:3], pieces.special.sep]
    message = "config.max_length=67 leaves no room for the context: expected more than config.task.query=64"
    with pytest.raises(UserError, match=message):
        SQUAD1.encode([example()], pieces, 67, train=False)


def test_an_impossible_question_points_at_cls(pieces):
    rows = SQUAD2.encode([example(impossible=True)], pieces, 128, train=True)
    assert [rows.targets[name].tolist() for name in ("start", "end", "impossible")] == [[0], [0], [1]]


def test_an_answer_that_a_window_cuts_is_not_in_it(pieces):
    task = answering(name="squad2", query=4, stride=5)
    length = len(pieces.encode([" Iceland and Norway"])[0])
    # The question, [CLS] and two [SEP], and one stride more than the answer, so that some window holds all of it.
    rows = task.encode([example("Iceland and Norway")], pieces, 4 + 3 + length + 5, train=True)
    assert len(rows.input_ids) > 3
    for ids, window, start, end in zip(
        rows.input_ids, rows.extra, rows.targets["start"], rows.targets["end"], strict=True
    ):
        shown = pieces.decode(ids[window.at : window.at + window.length])
        assert (start > 0) == ("iceland and norway" in shown)
        assert end - start == (length - 1 if start else 0)
    assert 0 < np.count_nonzero(rows.targets["start"]) < len(rows.input_ids)
    assert not rows.targets["impossible"].any()


def test_the_best_allowed_answer_is_said(pieces):
    rows = SQUAD1.encode([example()], pieces, 128, train=True)
    (start,), (end,), at = rows.targets["start"], rows.targets["end"], rows.extra[0].at
    longest = int(end - start + 1)
    task = answering(name="squad1", max_answer=longest)
    last = at + rows.extra[0].length - 1
    bad = {
        (0, 0, 0): 0.0,  # CLS
        (0, 1, end): 0.0,  # begins in the question
        (0, last, last + 1): 0.0,  # ends at SEP
        (0, last + 1, last + 1): 0.0,
        (0, end, start - 1): 0.0,  # ends before it begins
        (0, at, at + longest): 0.0,  # too long
        (0, 500, 501): 0.0,  # of a row with more tokens
    }
    said = outputs(rows, bad | {(0, start, end): -5.0, (0, at, at): -6.0}, beam=9)
    begin = CONTEXT.index("Denmark")
    assert task.answer(said, rows, [example()]) == [Answer("Denmark", 0.0, "Denmark", begin, begin + 7, -5.0)]
    assert task.answer(outputs(rows, bad, beam=9), rows, [example()])[0].text == ""


def independent(rows, chosen):
    """What transformers' head says: log-probabilities of starts and ends, those in `chosen` and little elsewhere."""
    found = {name: [np.full(len(ids), -50.0, np.float32) for ids in rows.input_ids] for name in ("start", "end")}
    for (name, row, at), value in chosen.items():
        found[name][row][at] = value
    return found


def test_starts_and_ends_that_do_not_depend_on_each_other(pieces):
    rows = SQUAD2.encode([example()], pieces, 128, train=True)
    (start,), (end,), at = rows.targets["start"], rows.targets["end"], rows.extra[0].at
    begin = CONTEXT.index("Denmark")
    span = {("start", 0, start): -1.0, ("end", 0, end): -2.0}
    outside = {("start", 0, 1): -0.1, ("end", 0, len(rows.input_ids[0]) - 1): -0.1}  # in the question, and at SEP
    none = {("start", 0, 0): -2.0, ("end", 0, 0): -2.5}
    (said,) = SQUAD2.answer(independent(rows, span | outside | none), rows, [example()])
    assert said == Answer("Denmark", pytest.approx(-1.5), "Denmark", begin, begin + 7, pytest.approx(-3.0))
    none = {("start", 0, 0): -1.0, ("end", 0, 0): -0.5}
    (said,) = SQUAD2.answer(independent(rows, span | none), rows, [example()])
    assert (said.text, said.best, said.no_answer) == ("", "Denmark", pytest.approx(1.5))
    assert answering("squad2", threshold=2.0).answer(independent(rows, span | none), rows, [example()])[0].text
    (said,) = SQUAD1.answer(independent(rows, span | none), rows, [example()])
    assert (said.text, said.no_answer) == ("Denmark", 0.0)
    short = answering("squad1", max_answer=int(end - start))
    ends = span | {("end", 0, start): -4.0, ("start", 0, end): -0.5, ("end", 0, at): -0.5}  # before its start
    (said,) = short.answer(independent(rows, ends), rows, [example()])
    assert said.log_probability == pytest.approx(-0.5 - 2.0)  # the last piece alone


def test_the_best_of_several_windows_is_said(pieces):
    task = answering("squad2", query=16, stride=8)
    rows = task.encode([example()], pieces, 40, train=True)
    assert len(rows.input_ids) > 2
    (row, *_) = np.flatnonzero(rows.targets["start"])
    start, end = int(rows.targets["start"][row]), int(rows.targets["end"][row])
    at = rows.extra[0].at
    found = {("start", row, start): -1.0, ("end", row, end): -1.0, ("start", 0, at): -1.5, ("end", 0, at): -1.5}
    nothing = {(name, r, 0): -0.1 for name in ("start", "end") for r in range(len(rows.input_ids)) if r != row}
    (said,) = task.answer(independent(rows, found | nothing), rows, [example()])
    assert said.text == "Denmark"
    assert said.no_answer == pytest.approx(-100 + 2)  # the window with the answer is sure that there is one


def test_a_context_without_tokens_has_no_answer(pieces):
    rows = SQUAD2.encode([example(context="", impossible=True)], pieces, 128, train=False)
    (said,) = SQUAD2.answer(independent(rows, {}), rows, [example(context="", impossible=True)])
    assert (said.text, said.best, said.begin, said.end) == ("", "", 0, 0)
    assert said.no_answer == 1000


def test_end_scores_count(pieces):
    rows = SQUAD1.encode([example()], pieces, 128, train=True)
    start, end = int(rows.targets["start"][0]), int(rows.targets["end"][0])
    said = outputs(rows, {(0, start, end): -1.0})
    for ends, scores in (([start, end], [-2.0, -1.0]), ([end, start], [-1.0, -2.0])):
        said["end_index"][0, 0], said["end_score"][0, 0] = ends, scores
        (answer,) = SQUAD1.answer(said, rows, [example()])
        assert (answer.text, answer.log_probability) == ("Denmark", -2.0)


def test_a_token_counts_in_the_window_with_most_around_it(pieces):
    task = answering(name="squad1", query=4, stride=8)
    rows = task.encode([example()], pieces, 27, train=True)
    holding = np.flatnonzero(rows.targets["start"])
    assert len(holding) > 1

    def around(row):
        window, at = rows.extra[row], rows.targets["start"][row] - rows.extra[row].at
        return min(at, window.length - 1 - at) + 0.01 * window.length

    best = max(holding, key=around)
    for only in holding:
        bounds = int(rows.targets["start"][only]), int(rows.targets["end"][only])
        (answer,) = task.answer(outputs(rows, {(only, *bounds): 0.0}), rows, [example()])
        assert answer.text == ("Denmark" if only == best else "")
    agreed = {(row, int(rows.targets["start"][row]), int(rows.targets["end"][row])): -1.0 for row in holding}
    assert task.answer(outputs(rows, agreed), rows, [example()])[0].text == "Denmark"


def test_no_answer_is_the_least_of_the_rows_logits(pieces):
    task = answering(name="squad2", query=4, stride=8, threshold=1.0)
    rows = task.encode([example()], pieces, 27, train=True)
    holding = np.flatnonzero(rows.targets["start"])
    chosen = {(row, int(rows.targets["start"][row]), int(rows.targets["end"][row])): 0.0 for row in holding}
    for least, empty in ((0.5, False), (1.5, True)):
        logits = [5.0] * len(rows.input_ids)
        logits[-1] = least
        (answer,) = task.answer(outputs(rows, chosen, impossible=logits), rows, [example()])
        assert answer.no_answer == least
        assert (answer.text == "") == empty
        assert answer.text in ("", answer.best)


@st.composite
def asked(draw):
    words = draw(
        st.lists(st.sampled_from([*WORDS, "re\u0301sume\u0301", "İIceland", "\ufb01n"]), min_size=1, max_size=60)
    )
    space = draw(st.sampled_from([" ", "  ", "\n"]))
    begin = draw(st.integers(0, len(words) - 1))
    answer = space.join(words[begin : begin + draw(st.integers(1, 3))])
    start = len(space.join([*words[:begin], ""]))
    return Example("q", "Where?", space.join(words), ((answer, start),), False)


@given(st.lists(asked(), min_size=1, max_size=3), st.integers(9, 60), st.integers(1, 40))
@settings(max_examples=40)
def test_windows_lose_no_token_and_know_their_characters(pieces, examples, length, stride):
    rows = answering(name="squad1", query=4, stride=stride).encode(examples, pieces, length, train=False)
    owned = squad._owned(rows)
    for number, each in enumerate(examples):
        ids, spans = pieces.spans(each.context)
        seen, owners = set(), np.zeros(len(ids), int)
        for row in np.flatnonzero(rows.example == number):
            at, first, count, where = rows.extra[row]
            assert where == spans
            assert rows.input_ids[row][at : at + count] == ids[first : first + count]
            seen.update(range(first, first + count))
            owners[first : first + count] += owned[row, at : at + count]
        assert seen == set(range(len(ids)))
        assert owners.tolist() == [1] * len(ids)
    assert max(rows.lengths()) <= length


@given(st.lists(asked(), min_size=1, max_size=4), st.data())
@settings(max_examples=40)
def test_what_is_perfect_has_all_points(pieces, examples, data):
    """Answers of whole words: what a piece more or less changes is no word."""
    task = answering(name="squad2", max_answer=1000)
    none = [data.draw(st.booleans()) for _ in examples]
    examples = [
        each._replace(id=str(i), impossible=no, answers=() if no else each.answers)
        for i, (each, no) in enumerate(zip(examples, none, strict=True))
    ]
    rows = task.encode(examples, pieces, 2000, train=True)
    answers = task.answer(perfect(rows), rows, examples)
    scores = task.score(examples, answers)
    assert {name: value for name, value in scores.items() if "thresh" not in name} == {
        name: 100 for name in scores if "thresh" not in name
    }


def test_scores_by_kind_and_at_the_best_threshold():
    examples = [example(), example("Iceland"), example(impossible=True)]
    answers = [Answer("Denmark!", -1.0, "Denmark!"), Answer("", 0.5, "the Iceland"), Answer("x", 0.6, "x")]
    scores = SQUAD2.score(examples, answers)
    third = pytest.approx(100 / 3)
    assert scores == {
        "exact": third,
        "f1": third,
        "has_ans_exact": 50,
        "has_ans_f1": 50,
        "no_ans_exact": 0,
        "no_ans_f1": 0,
        "best_exact": 100,
        "best_exact_thresh": 0.5,
        "best_f1": 100,
        "best_f1_thresh": 0.5,
    }
    assert SQUAD1.score(examples[:2], [Answer("Norway", 0.0, "Norway"), Answer("an Iceland", 0.0, "")]) == {
        "exact": 50,
        "f1": 50,
    }


def test_answers_are_written_by_id(tmp_path):
    examples = [example()._replace(id="a"), example()._replace(id="b")]
    answers = [Answer("Dänemark", -1e4, "Dänemark"), Answer("", 0.0, "x")]
    SQUAD1.write(tmp_path / "one", examples, answers)
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == {"a": "Dänemark", "b": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
    SQUAD2.write(tmp_path / "dev", examples, answers)
    assert json.loads((tmp_path / "dev.na_prob.json").read_text()) == {"a": 0.0, "b": 0.5}


def test_f1_counts_characters_where_no_spaces_are_written():
    answers = [Answer("于北京", 0.0, "于北京")]
    examples = [example("北京", context="他生于北京。")]
    assert SQUAD1.score(examples, answers) == pytest.approx({"exact": 0, "f1": 80})
    found = SQUAD2.score(examples, answers)
    assert [found[name] for name in ("f1", "has_ans_f1", "best_f1", "exact")] == pytest.approx([80, 80, 80, 0])
    assert answering("squad1", f1="words").score(examples, answers) == {"exact": 0, "f1": 0}
    latin = [Answer("于NBA", 0.0, "")], [example("NBA", context="于NBA")]
    assert answering("squad1", f1="cmrc").score(latin[1], latin[0])["f1"] == pytest.approx(200 / 3)
    english = [example("Denmark")] * 2
    said = [Answer("from Denmark", 0.0, ""), Answer("北京", 0.0, "")]
    assert SQUAD1.score(english, said) == pytest.approx({"exact": 0, "f1": (200 / 3) / 2})
    assert answering("squad1", f1="characters").score(english[:1], said[:1])["f1"] == pytest.approx(100 * 14 / 18)
