"""Lists the files of a source, on this machine or in an object store: a path, a folder, a glob, or an address of these.

In a folder, files with a known text suffix are read. Archives are not, as they often contain the files beside them. A
folder that `datasets` has saved is read as its own state says.
"""

import glob
import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.data import formats
from electra_jax.data.input_file import open_binary
from electra_jax.runtime import remote_files
from electra_jax.runtime.io import from_json
from electra_jax.runtime.remote_files import ListedFile

# Metadata that `save_to_disk` of the package datasets writes beside a data set's files, and beside folders of splits.
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def list_files(pattern: str) -> tuple[list[ListedFile], list[str]]:
    """Returns (files to read, in order; names of those to leave out) of a path, a folder with subfolders, or a glob.

    Raises:
      UserError: a folder holds several splits of a data set, or a store cannot be read.
    """
    files, others, folder = _list_remote(pattern) if remote_files.is_url(pattern) else _list_local(pattern)
    if folder is None:
        return files, others
    known = [file for file in files if formats.is_known(file.name)]
    others += sorted({file.name for file in files} - {file.name for file in known})
    readable = _without_other_files_of_saved_sets(known, folder)
    return readable, sorted(others)


def _list_local(pattern: str) -> tuple[list[ListedFile], list[str], str | None]:
    """Returns (files, names of other things that were found, the folder if it is one)."""
    path = Path(pattern)
    # Before the pattern: the name of a file may have brackets.
    if path.is_file():
        return [_local_file(path)], [], None
    if path.is_dir():
        # Sorted, because the file system may list a copied folder in another order.
        paths = sorted(_walk(path))
    else:
        paths = [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]
        # ** also matches the folders of the files.
        paths = [p for p in paths if not (p.is_dir() and "**" in pattern)]
    files = [_local_file(p) for p in paths if p.is_file()]
    return files, sorted(str(p) for p in paths if not p.is_file()), pattern if path.is_dir() else None


def _local_file(path: Path) -> ListedFile:
    stat = path.stat()
    return ListedFile(str(path), stat.st_size, str(stat.st_mtime_ns))


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder and its subfolders, following links, without hidden ones.

    Raises:
      OSError: a folder cannot be listed.
    """

    # os.walk leaves out a folder that it cannot list, unless it is told to raise.
    def refuse(error: OSError) -> None:
        raise error

    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        # A link may lead back to a folder above it.
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else [name for name in folders if not _is_of_the_system(name)]
        if real not in seen:
            yield from (Path(parent) / name for name in names if not _is_of_the_system(name))
        seen.add(real)


def _is_of_the_system(name: str) -> bool:
    return name.startswith(".") or name == "lost+found"  # which only root can list


def _list_remote(pattern: str) -> tuple[list[ListedFile], list[str], str | None]:
    """Like `_list_local`, for an address."""
    files, is_folder = remote_files.list_files(pattern)
    if is_folder:
        files = [file for file in files if not _is_hidden(file.name, pattern)]
    return files, [], pattern if is_folder else None


def _is_hidden(name: str, folder: str) -> bool:
    # The folder's own name may begin with a dot. Without schemes, because fsspec adds a slash to that of memory://.
    path, above = (each.partition("://")[2].strip("/") for each in (name, folder))
    return any(part.startswith(".") for part in path.removeprefix(above).split("/"))


def _without_other_files_of_saved_sets(files: Sequence[ListedFile], folder: str) -> list[ListedFile]:
    """Returns the files of a folder; of a data set saved by `datasets`, those that its state names, in that order."""
    # posixpath throughout: addresses have slashes on every machine.
    names = {file.name: file for file in files}
    folders = {posixpath.dirname(file.name) for file in files}
    splits = sorted(
        posixpath.basename(each) for each in folders if posixpath.join(posixpath.dirname(each), _SPLITS) in names
    )
    if splits:
        raise UserError(
            f"{folder} holds splits of a saved data set ({', '.join(splits)}): expected one of them; name its folder, "
            f"as {folder.rstrip('/')}/{'train' if 'train' in splits else splits[0]}"
        )
    saved = {each for each in folders if {posixpath.join(each, name) for name in (_STATE, _INFO)} <= set(names)}
    kept = []
    for file in files:
        parent = posixpath.dirname(file.name)
        if parent not in saved:
            kept.append(file)
        elif posixpath.basename(file.name) == _STATE:
            # In the order of the rows, which need not be that of the names.
            for name in _data_files(file.name):
                if name not in names:
                    raise UserError(f"{name} is missing, which {_STATE} beside it names; copy the whole folder")
                kept.append(names[name])
    return kept


def _data_files(state: str) -> list[str]:
    """Reads the files of a saved data set, in the order of its rows, from its state.json."""
    try:
        with open_binary(state) as file:
            files = from_json(file.read().decode())["_data_files"]
        return [posixpath.join(posixpath.dirname(state), each["filename"]) for each in files]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{state} is not the state of a saved data set ({error!r}); save the set again") from error
