"""Models on the Hugging Face Hub: `hf:USER/NAME@REVISION` in place of a folder, and uploads.

The library reads HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, and keeps downloads in its own cache.
"""

import re
from pathlib import Path

from electra_jax.config.errors import UserError, first_line

PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt")  # those of ours and of transformers, in folders too
# Where a model of another kind was in the repository, its files would be read with those of the new one.
_OLD_FILES = (
    *(
        "generator/*",
        "discriminator/*",
        "onnx/*",
        "config.json",
        "task.json",
        "head.safetensors",
        "embedding_factors.safetensors",
    ),
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("spiece.model", "spm.model", "vocab.txt"),
)
_REASON = 200  # characters of an error that are shown


def is_on_hub(path: Path | str) -> bool:
    """Whether `path` is `hf:...`."""
    return str(path).startswith(PREFIX)


def local(path: Path) -> Path:
    """The folder of a model: `path` itself, or what was downloaded of `hf:USER/NAME[@REVISION]`.

    Raises:
      UserError: there is no such model or revision, it has no weights in safetensors, the Hub refuses it, or it is not
        reached.
    """
    if not is_on_hub(path):
        return path
    from huggingface_hub import HfApi, snapshot_download

    name, _, revision = str(path).removeprefix(PREFIX).partition("@")
    _check_name(name, str(path))
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=list(_FILES)))
        others = () if any(folder.rglob("*.safetensors")) else HfApi().list_repo_files(name, revision=revision or None)
    except Exception as error:  # of whichever HTTP library this version of huggingface_hub has
        raise UserError(
            f"{path} cannot be downloaded ({first_line(error)[:_REASON]}); check name and network, or log in with "
            "`hf auth login`"
        ) from error
    if pickles := [file for file in others if file.startswith("pytorch_model")]:
        raise UserError(
            f"{path} has its weights in {pickles[0]}, a pickle, which electra_jax does not read because it can run "
            f"code; if you trust it, get it with `hf download {name} --local-dir=DIR`, and give DIR: then the message "
            "says how to convert it"
        )
    return folder


def upload(folder: Path, repo: str, message: str, revision: str | None = None, private: bool = False) -> str:
    """Uploads a folder to a repository of models, which is made if it does not exist.

    Files of an earlier model that the folder does not have are deleted; other files stay.

    Args:
      folder: the files.
      repo: USER/NAME.
      message: the commit's message.
      revision: a branch, made if it does not exist; None: main.
      private: whether the repository is to be private.

    Returns:
      The address of the commit.

    Raises:
      UserError: the repository is to be private and exists as a public one, the Hub refuses it, or is not reached.
    """
    from huggingface_hub import HfApi

    _check_name(repo, f"--repo={repo}")
    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        is_public = private and not api.model_info(repo).private
        if not is_public:
            if revision is not None:
                api.create_branch(repo, branch=revision, exist_ok=True)
            return str(
                api.upload_folder(
                    repo_id=repo,
                    folder_path=folder,
                    revision=revision,
                    commit_message=message,
                    delete_patterns=list(_OLD_FILES),
                )
            )
    except Exception as error:  # as above
        raise UserError(
            f"{repo} cannot be uploaded ({first_line(error)[:_REASON]}); check name and network, or log in with "
            "`hf auth login` and a token that may write"
        ) from error
    raise UserError(
        f"{repo} is public; make it private in its settings on the Hub, give another --repo, or leave out --private"
    )


def _check_name(name: str, given: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{given} is invalid: expected USER/NAME, as in the address of a model on the Hub")
