from hypothesis import given
from hypothesis import strategies as st

from electra_jax.data import documents


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 12))
def test_documents_together_are_consecutive_and_end_where_they_are_full(sizes, size):
    given_documents = [documents.Document(str(number), b"x" * n) for number, n in enumerate(sizes)]
    found = list(documents.group_by_size(iter(given_documents), size))
    assert [document for chunk in found for document in chunk] == given_documents
    totals = [[len(document.text) for document in chunk] for chunk in found]
    assert all(sum(total) >= size for total in totals[:-1])
    assert all(sum(total[:-1]) < size for total in totals)
