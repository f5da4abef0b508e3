"""Models on the Hugging Face Hub: downloads, named `hf:USER/NAME@REVISION` instead of a folder, and uploads.

huggingface_hub reads HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, and keeps downloads in its own cache.
"""

import re
from pathlib import Path

from electra_jax.config.errors import UserError, first_line

PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt")  # files of electra_jax and of transformers, also in subfolders
# Deleted by an upload: files of an earlier model of another kind would be read together with the new ones.
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


def is_on_hub(path: Path | str) -> bool:
    """Returns True if `path` is `hf:...`."""
    return str(path).startswith(PREFIX)


def local(path: Path) -> Path:
    """Returns the local folder of a model: `path` itself, or the download of `hf:USER/NAME[@REVISION]`.

    Raises:
      UserError: the model or revision does not exist or has its weights in pickles only, or the Hub refuses access or
        cannot be reached.
    """
    if not is_on_hub(path):
        return path
    from huggingface_hub import HfApi, snapshot_download

    name, _, revision = str(path).removeprefix(PREFIX).partition("@")
    _check_name(name, str(path))
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=list(_FILES)))
        # The list takes another request, and is only needed to say why there are no weights.
        others = () if any(folder.rglob("*.safetensors")) else HfApi().list_repo_files(name, revision=revision or None)
    except Exception as error:  # the HTTP library depends on the version of huggingface_hub
        raise UserError(
            f"{path} cannot be downloaded ({first_line(error)}); check name and network, or log in with `hf auth login`"
        ) from error
    # Outside of the `try`, which would report this as an error of the Hub.
    if pickles := [file for file in others if file.startswith("pytorch_model")]:
        raise UserError(
            f"{path} has its weights in {pickles[0]}, a pickle, which electra_jax does not read because it can run "
            f"code; if you trust it, get it with `hf download {name} --local-dir=DIR`, and give DIR: then the message "
            "says how to convert it"
        )
    return folder


def upload(folder: Path, repo: str, message: str, revision: str | None = None, private: bool = False) -> str:
    """Uploads a folder to a model repository, which is created if it does not exist.

    Model files in the repository that the folder does not have are deleted; other files stay.

    Args:
      folder: the files.
      repo: USER/NAME.
      message: the commit message.
      revision: a branch, created if it does not exist; None: main.
      private: whether the repository must be private.

    Returns:
      The URL of the commit.

    Raises:
      UserError: the repository must be private but exists as a public one, or the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi

    _check_name(repo, f"--repo={repo}")
    api = HfApi()
    try:
        # None leaves the choice to the organization. Neither value changes a repository that exists.
        api.create_repo(repo, private=private or None, exist_ok=True)
        # Before anything is uploaded. The error is raised below: the `except` would report it as one of the Hub.
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
            f"{repo} cannot be uploaded ({first_line(error)}); check name and network, or log in with "
            "`hf auth login` and a token that may write"
        ) from error
    raise UserError(
        f"{repo} is public; make it private in its settings on the Hub, give another --repo, or leave out --private"
    )


def _check_name(name: str, given: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{given} is invalid: expected USER/NAME, as in the address of a model on the Hub")
