"""The pages of the documentation that are about training do what they say."""

import pages
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(pages.RUNNABLE - pages.OF_MODELS))
def test_the_blocks_of_a_page_run_in_an_empty_folder(page, tmp_path, tmp_path_factory):
    pages.run(page, tmp_path, tmp_path_factory)
