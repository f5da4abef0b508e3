import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_jax.downstream.tasks import squad_metrics
from electra_jax.downstream.tasks.squad_metrics import Measure

WORDS = st.lists(st.sampled_from(["the", "a", "cat", "sat", "Mat.", "--", "é"]), max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Cat", "cat"),
        ("an  apple\na\tday", "apple day"),
        ("U.S.A.'s", "usas"),
        ("the-cat", "thecat"),  # punctuation goes first, so that no article is seen
        ("theory of anthems", "theory of anthems"),
        ("...", ""),
        ("a", ""),
        ("École “Supérieure”", "école “supérieure”"),  # punctuation is ASCII's
    ],
)
def test_normalized_texts(text, normal):
    assert squad_metrics.normalize(text) == normal


@pytest.mark.parametrize(
    ("true", "said", "exact", "f1"),
    [
        (["the cat"], "Cat!", 1, 1),
        (["cat"], "dog", 0, 0),
        (["black cat"], "the cat sat", 0, 2 * 1 / 4),
        (["cat cat"], "cat", 0, 2 / 3),  # a word counts as often as it is there
        (["dog", "cat sat"], "cat", 0, 2 / 3),  # the best of those that are right
        (["dog", "cat"], "cat", 1, 1),
        (["cat"], "", 0, 0),
    ],
)
@pytest.mark.parametrize("may_be_impossible", [False, True])
def test_measures_are_those_of_the_best_true_answer(true, said, exact, f1, may_be_impossible):
    assert squad_metrics.measure(true, said, may_be_impossible) == pytest.approx(Measure(exact, f1))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("《在北京》（２０２０年）。", "在北京２０２０年"),
        ("“Kunming” ～ 昆明！", "kunming 昆明"),
        ("$5+5=10", "5510"),
        ("홍  길동", "홍 길동"),
        ("a the", "a the"),  # there are no articles
        ("……、·", ""),
        ("5℃ ½ №1", "5℃ ½ №1"),  # symbols are no punctuation
    ],
)
def test_characters_are_normalized(text, normal):
    assert squad_metrics.normalize_characters(text) == normal


@pytest.mark.parametrize(
    ("true", "said", "exact", "f1"),
    [
        (["1908年4月"], "1908年4月。", 1, 1),
        (["1908年4月"], "年1908", 0, 2 * 5 / (7 + 5)),
        (["北京"], "南京", 0, 2 * 1 / 4),
        (["北京"], "上海", 0, 0),
        (["서울특별시", "서울"], "서울 시", 0, 2 * 2 / 5),
        (["홍 길동"], "홍길동", 0, 1),
    ],
)
@pytest.mark.parametrize("may_be_impossible", [False, True])
def test_f1_of_characters(true, said, exact, f1, may_be_impossible):
    found = squad_metrics.measure(true, said, may_be_impossible, squad_metrics.CHARACTERS)
    assert found == pytest.approx(Measure(exact, f1))


@pytest.mark.parametrize(
    ("true", "said", "exact", "f1"),
    [
        (["1908年4月"], "1908年4月。", 1, 1),
        (["1908年4月"], "年1908", 0, 2 * 1 / (4 + 2)),  # the longest run, not all that is shared
        (["在 NBA 打球"], "nba打", 0, 2 * 2 / (4 + 2)),  # a Latin word is one unit
        (["1,000.5元"], "1,000.5", 0, 2 * 1 / (2 + 1)),
        (["《红楼梦》（上）"], "红楼梦上", 1, 1),
        (["37.5℃"], "37.5", 0, 0),  # other signs stay in their word
        (["50%"], "50", 0, 2 * 1 / (2 + 1)),
        (["红楼梦."], "红楼梦", 0, 2 * 3 / (4 + 3)),  # a full stop of ASCII is a unit
        (["北京"], "上海", 0, 0),
        (["北京", "北平"], "北平", 1, 1),
        (["。"], "，", 1, 0),
    ],
)
def test_f1_as_cmrc_defines_it(true, said, exact, f1):
    found = squad_metrics.measure(true, said, False, squad_metrics.CMRC)
    assert found == pytest.approx(Measure(exact, f1))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1908年4月", "ＮＡＴＯ組織"], False),  # four of eight letters
        (["北京", "NHKの都", "々", "２"], True),
        (["กรุงเทพ", "ភ្នំពេញ", "ວຽງຈັນ", "ရန်ကုန်", "ལྷ་ས"], True),
        (["서울특별시"], False),
        (["Beijing (北京)", "the 10th"], False),
        (["12", "..."], False),
        ([], False),
    ],
)
def test_scripts_without_spaces_are_told_by_most_letters(texts, expected):
    assert squad_metrics.has_no_spaces(texts) == expected


def test_nothing_is_right_where_there_is_nothing():
    assert squad_metrics.measure([], "", may_be_impossible=True) == Measure(1, 1)
    assert squad_metrics.measure([], "cat", may_be_impossible=True) == Measure(0, 0)
    assert squad_metrics.measure([], "the.", may_be_impossible=True) == Measure(1, 1)


def test_answers_without_a_word_are_as_in_each_script():
    assert squad_metrics.measure(["a"], "The", may_be_impossible=False) == Measure(1, 0)
    assert squad_metrics.measure(["a", "cat"], "The", may_be_impossible=True) == Measure(0, 0)
    assert squad_metrics.measure(["a"], "", may_be_impossible=True) == Measure(1, 1)


@given(WORDS, WORDS)
def test_f1_is_between_exact_and_one_and_the_same_both_ways(one, other):
    forth, back = (squad_metrics.measure([a or "x"], b or "x", True) for a, b in ((one, other), (other, one)))
    assert 0 <= forth.exact <= forth.f1 <= 1
    if squad_metrics.normalize(one) and squad_metrics.normalize(other):
        assert forth == back


def test_means_are_percents():
    assert squad_metrics.mean([Measure(1, 1), Measure(0, 0.5)]) == Measure(50, 75)
    assert squad_metrics.mean([]) == Measure(0, 0)


def test_the_best_threshold_is_the_one_with_the_highest_mean():
    # In order of no_answer: right (+1), none there but answered, .8, .5, and one that has none, so that silence is +1.
    no_answer = [0.5, -2.0, -1.0, 0.0, 3.0]
    scores = [0.5, 1.0, 0.0, 0.8, 0.0]
    answerable = [True, True, False, True, False]
    found = squad_metrics.best_threshold(no_answer, scores, answerable, ["a", "b", "c", "d", "e"])
    assert found == (pytest.approx(100 * (1 + 0.8 + 0.5 + 1) / 5), 0.5)


def test_to_answer_none_may_be_best():
    assert squad_metrics.best_threshold([0.5, 2.0], [0.0, 0.0], [True, False], ["x", "y"]) == (50, -0.5)


def test_what_is_unanswered_at_any_threshold_costs_nothing():
    assert squad_metrics.best_threshold([0.0, 1.0], [0.0, 1.0], [False, True], ["", "y"]) == (100, 1.0)
