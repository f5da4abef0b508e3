"""Models on the Hugging Face Hub: `hf:USER/NAME@REVISION` in place of a folder, and uploads.

The library reads HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, and keeps downloads in its own cache.
"""

import re
from pathlib import Path

from electra_jax.config.errors import UserError, first_line

PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt")  # those of ours and of transformers, in folders too
_REASON = 200  # characters of an error that are shown


def is_on_hub(path: Path | str) -> bool:
    """Whether `path` is `hf:...`."""
    return str(path).startswith(PREFIX)


def local(path: Path) -> Path:
    """The folder of a model: `path` itself, or what was downloaded of `hf:USER/NAME[@REVISION]`.

    Raises:
      UserError: there is no such model or revision, the Hub refuses it, or it is not reached.
    """
    if not is_on_hub(path):
        return path
    from huggingface_hub import snapshot_download

    name, _, revision = str(path).removeprefix(PREFIX).partition("@")
    _check_name(name, str(path))
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(_FILES)))
    except Exception as error:  # of whichever HTTP library this version of huggingface_hub has
        raise UserError(
            f"{path} cannot be downloaded ({first_line(error)[:_REASON]}); check name and network, or log in with "
            "`hf auth login`"
        ) from error


def upload(folder: Path, repo: str, message: str, revision: str | None = None, private: bool = False) -> str:
    """Uploads a folder to a repository of models, which is made if it does not exist.

    Args:
      folder: the files.
      repo: USER/NAME.
      message: the commit's message.
      revision: a branch, made if it does not exist; None: main.
      private: whether a repository that is made is private.

    Returns:
      The address of the commit.

    Raises:
      UserError: the Hub refuses it, or is not reached.
    """
    from huggingface_hub import HfApi

    _check_name(repo, f"--repo={repo}")
    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=folder, revision=revision, commit_message=message))
    except Exception as error:  # as above
        raise UserError(
            f"{repo} cannot be uploaded ({first_line(error)[:_REASON]}); check name and network, or log in with "
            "`hf auth login` and a token that may write"
        ) from error


def _check_name(name: str, given: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{given} is invalid: expected USER/NAME, as in the address of a model on the Hub")
