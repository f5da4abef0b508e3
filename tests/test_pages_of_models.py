"""The pages of the documentation that use models that were trained do what they say."""

import hub_server
import pages
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(pages.OF_MODELS - {pages.NEEDS_HUB}))
def test_the_blocks_of_a_page_run_in_an_empty_folder(page, tmp_path, tmp_path_factory):
    pages.run(page, tmp_path, tmp_path_factory)


@pytest.mark.slow
def test_the_page_of_the_hub_runs_with_a_stand_in(tmp_path, tmp_path_factory):
    (tmp_path / "here").mkdir()
    with hub_server.serve() as served:
        hub = {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": hub_server.TOKEN}
        pages.run(pages.NEEDS_HUB, tmp_path / "here", tmp_path_factory, HF_HUB_DISABLE_XET="1", **hub)
        assert {"main", "step-0"} < {*served.repos["USER/NAME"]}
