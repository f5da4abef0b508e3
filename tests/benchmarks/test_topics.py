import json
import lzma

import topics

from electra_jax.config import errors


def squad(**articles):
    """Articles of paragraphs of questions."""
    return {
        "data": [
            {
                "title": title,
                "paragraphs": [{"qas": [{"question": question} for question in each]} for each in paragraphs],
            }
            for title, paragraphs in articles.items()
        ]
    }


def test_the_two_sets_are_of_different_paragraphs():
    given = squad(Oslo=[["a?", "b ?\n", "c?", "d?"], ["e?"], ["f?", "g?"]], Rome=[["h?"], ["i?"]])
    train, dev = topics.split(given, 2)
    assert train == [("a?", "Oslo"), ("c?", "Oslo"), ("h?", "Rome")]  # of four, two that are evenly spaced
    assert dev == [("e?", "Oslo"), ("f?", "Oslo"), ("g?", "Oslo"), ("i?", "Rome")]


def test_a_bag_of_words_learns_what_words_say(tmp_path, capsys):
    given = squad(
        Oslo=[[f"which fjord is number {n}?" for n in range(9)], ["which fjord?"]],
        Rome=[[f"which emperor is number {n}?" for n in range(9)], ["which emperor?"]],
    )
    with lzma.open(tmp_path / "squad.json.xz", "wt") as file:
        json.dump(given, file)
    command = [f"--squad={tmp_path / 'squad.json.xz'}", f"--output={tmp_path / 'out'}", "--train=9"]
    assert errors.run(topics.main, command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-3] == "2 articles, 18 questions to train on, 2 to test"
    assert said[-2:] == ["accuracy of a bag of words: 100.0", "accuracy of a bag of words and their parts: 100.0"]
    assert (tmp_path / "out" / "dev.tsv").read_text() == "question\tlabel\nwhich fjord?\tOslo\nwhich emperor?\tRome\n"
