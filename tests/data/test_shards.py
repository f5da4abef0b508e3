import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data import shards, sources
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import NOT_UTF8, Document, hashed
from electra_jax.data.duplicates import DUPLICATE


def test_a_unit_is_read_in_chunks_named_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nThree.")
    (unit,) = sources.units(sources.parse(f"{tmp_path}/a.txt"), 1)
    (chunk,) = shards.read_chunks(3, unit._replace(source=1), CorpusConfig(), 100)
    assert (chunk.name, chunk.source, chunk.notes) == ("000003-000000", 1, {})
    assert [document.text for document in chunk.documents] == [b"One.", b"Two.", b"Three."]


def test_a_chunk_leaves_out_duplicates_and_notes_them():
    documents = [hashed(Document(f"a.txt:{number}", text)) for number, text in enumerate([b"one", b"two", b"one"])]
    chunk = shards.Chunk("000003-000007", 1, documents, {}).without({2: DUPLICATE, 0: DUPLICATE})
    assert [document.text for document in chunk.documents] == [b"two"]
    assert chunk.notes == {DUPLICATE: (2, "a.txt:0")}


def clean(text, place="a.txt:10"):
    notes = {}
    document = Document(place, text if isinstance(text, bytes) else text.encode(), numbered=True)
    return shards.clean(document, notes), notes


def test_lines_that_hold_something_without_white_space_around_them():
    assert clean("One.\n\n  Two \t words.\r\n \n\u00a0Drei\u3000vier.") == (["One.", "Two words.", "Drei vier."], {})


def test_broken_utf8_is_mended_and_its_line_named():
    assert clean(b"fine\nGr\xfc\xdfe\nfine") == (
        ["fine", "Gr\ufffd\ufffde", "fine"],
        {NOT_UTF8: (1, "a.txt:11")},
    )


def test_a_replacement_character_of_the_text_is_no_fault():
    assert clean("what \ufffd is") == (["what \ufffd is"], {})


def test_control_characters_are_removed_and_counted_once_a_document():
    assert clean("a\x00b\n\x07\nc\x9f d\ufeff\ufdd0\U0001fffe\n\x85e") == (
        ["ab", "c d", "e"],
        {shards.CONTROL: (1, "a.txt:10")},
    )


def test_marks_that_scripts_need_stay():
    text = "می\u200cخواهم क्\u200dष soft\u00adhyphen \U0001f468\u200d\U0001f469"
    assert clean(text) == ([text], {})


def test_long_lines_are_cut_between_words():
    words = [f"word{n}" for n in range(2000)]
    lines, notes = clean("short\n" + " ".join(words))
    assert notes == {shards.LONG_LINE: (1, "a.txt:11")}
    assert max(map(len, lines)) <= shards.LONGEST_LINE
    assert " ".join(lines[1:]).split() == words


def test_long_lines_without_words_are_cut_anywhere():
    lines, _ = clean("字" * 10_001)
    assert list(map(len, lines)) == [4000, 4000, 2001]


def test_a_long_line_is_cut_without_copying_its_rest_each_time():
    copied = []

    class Line(str):
        def __getitem__(self, where):
            piece = Line(super().__getitem__(where))
            copied.append(len(piece))
            return piece

    line = Line("word " * 10_000)
    assert len([*shards._cut_line(line)]) > 10
    assert sum(copied) == len(line)


def test_empty_documents_are_counted():
    assert clean(" \n\x00")[1].keys() == {shards.EMPTY, shards.CONTROL}
    assert clean("") == ([], {shards.EMPTY: (1, "a.txt:10")})


def test_the_lines_of_a_record_are_not_those_of_the_file():
    notes = {}
    shards.clean(Document("a.jsonl:7", b"one\n\xff"), notes)
    assert notes == {NOT_UTF8: (1, "a.jsonl:7")}


def test_a_long_line_of_spaces_is_no_long_line():
    assert clean("a" + " " * 9000 + "b") == (["a b"], {})


@given(st.lists(st.text("a ", max_size=9) | st.text("a \t\u3000", max_size=9), max_size=4))
def test_white_space_in_a_line_is_single_spaces(lines):
    """As `Model.encode` takes it: a byte-level tokenizer has other tokens for two spaces than for one."""
    assert clean("\n".join(lines))[0] == [" ".join(line.split()) for line in lines if line.split()]


def test_a_place_without_a_line_is_kept():
    assert clean(b"one\n\xff", "asyncio.events")[1] == {NOT_UTF8: (1, "asyncio.events")}


def test_notes_together_have_the_first_place():
    assert shards.merge_notes([{"x": (2, "a:1")}, {"y": (1, "b:2")}, {"x": (3, "c:3")}]) == {
        "x": (5, "a:1"),
        "y": (1, "b:2"),
    }


@given(st.text(max_size=300))
@settings(max_examples=300)
def test_nothing_but_white_space_and_control_characters_is_lost(text):
    lines, _ = clean(text.encode("utf-8", "replace"))
    kept = [c for c in text.encode("utf-8", "replace").decode() if not c.isspace() and unicodedata.category(c) != "Cc"]
    assert "".join(lines).replace(" ", "") == "".join(c for c in kept if c not in "\ufeff\ufffe\uffff")
    for line in lines:
        assert line == line.strip()
        assert not any(c.isspace() for c in line.replace(" ", ""))
        assert line


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_become_lines(data):
    lines, notes = clean(data)
    assert bool(lines) != (shards.EMPTY in notes)
    assert all("\n" not in line and len(line) <= shards.LONGEST_LINE for line in lines)
