"""A Hub that refuses, or breaks down, at each step of an upload; tests/test_models.py uploads and loads for real."""

from pathlib import Path

import hub_server
import pytest
from huggingface_hub import constants

from electra_jax.config.errors import UserError
from electra_jax.loading import hub

STEPS = ["/api/repos/create", "/branch/", "/preupload/", "/commit/"]


@pytest.fixture(scope="module")
def served():
    with hub_server.serve() as found:
        yield found


@pytest.fixture
def upload(served, tmp_path, monkeypatch):
    """A function that uploads a folder."""
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    monkeypatch.setattr(served, "repos", {})  # the library takes a refusal to make one that is there for consent
    monkeypatch.setattr(served, "refuses", {})
    monkeypatch.setattr(served, "broken", [])
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the library's attempts
    (tmp_path / "config.json").write_text("{}")
    return lambda: hub.upload(tmp_path, "me/mine", "a message", "step-1")


def check_is_one_line(error):
    line = str(error)
    assert line.startswith("me/mine cannot be uploaded (")
    assert line.endswith("); check name and network, or log in with `hf auth login` and a token that may write")
    assert "\n" not in line
    assert len(line) < 400


def test_files_of_an_earlier_model_are_deleted_and_others_stay(upload, served):
    stay = {"README.md": b"card", "notes.json": b"{}", "images/curve.png": b"png"}
    old = dict.fromkeys(("generator/model.safetensors", "head.safetensors", "task.json", "spiece.model"), b"old")
    served.repos["me/mine"] = {"main": served.commit({"config.json": b"old", **old, **stay})}
    upload()
    assert served.commits[served.repos["me/mine"]["step-1"]] == {"config.json": b"{}", **stay}


def test_a_public_repository_gets_nothing_that_is_private(upload, served, tmp_path):
    before = served.commit({})
    served.repos["me/mine"] = {"main": before}
    with pytest.raises(
        UserError, match=r"^me/mine is public; make it private in its settings on the Hub, give another"
    ):
        hub.upload(tmp_path, "me/mine", "a message", private=True)
    assert served.repos["me/mine"] == {"main": before}


def test_weights_in_a_pickle_are_not_downloaded(upload, served, monkeypatch, tmp_path):
    served.repos["me/old"] = {"main": served.commit({"pytorch_model.bin": b"code"})}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    message = (
        r"^hf:me/old has its weights in pytorch_model.bin, a pickle, .*`hf download me/old --local-dir=DIR`, and give"
    )
    with pytest.raises(UserError, match=message):
        hub.local(Path("hf:me/old"))
    assert not list(tmp_path.rglob("*.bin"))


def test_a_hub_that_takes_it(upload, served):
    assert upload().startswith(served.url)
    assert served.commits[served.repos["me/mine"]["step-1"]] == {"config.json": b"{}"}


@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.parametrize("step", STEPS)
def test_a_refusal_is_one_line(step, status, upload, served):
    served.refuses[step] = status
    with pytest.raises(UserError) as caught:
        upload()
    check_is_one_line(caught.value)
    assert str(status) in str(caught.value)


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_that_ends_is_one_line(step, upload, served):
    """Its exception is one of the HTTP library, which differs between versions of huggingface_hub."""
    served.broken.append(step)
    with pytest.raises(UserError) as caught:
        upload()
    check_is_one_line(caught.value)


def test_a_hub_that_is_not_there(upload, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError) as caught:
        upload()
    check_is_one_line(caught.value)
