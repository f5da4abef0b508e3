"""Commands that are killed at named points, and run again, end with the files and bits of an uninterrupted one.

tests/storm kills at random moments, for a night; these are the points that are dangerous.
"""

from pathlib import Path

import pytest
from cli_runs import (
    ROOT,
    arrays,
    assert_same_bits,
    contents,
    environment,
    logged,
    prepare_arguments,
    sst2_files,
    train_arguments,
)
from kill_points import Point, commands, finish, kill

pytestmark = pytest.mark.slow

STEPS = 8
TRAINING = (
    *(f"--config.steps={STEPS}", "--config.checkpoint.every=2", "--config.checkpoint.keep_last=1"),
    *("--config.log_every=1", "--config.eval_every=4"),
)
EQUAL = ("total_tokens", "total_flops", "mlm_loss", "heldout_mlm_loss", "epoch")
SAVE = "orbax.checkpoint:CheckpointManager.save"

# Each start goes on from what the kill before it left.
TRAIN = (
    # The folder has no config.json by which the next start could know it as a run.
    Point("before", "rename", "config.json"),
    # All of the first checkpoint is there under another name, and two steps are logged: it starts at step 0.
    Point("before", "rename", "checkpoints/2"),
    # Steps 3 and 4 are logged, and would be twice; the checkpoint before them is complete.
    Point("before", SAVE, time=2),
    # While these lines are removed.
    Point("before", "rename", "metrics.jsonl"),
    # There is one checkpoint more than are kept.
    Point("after", "rename", "checkpoints/4"),
    # One that is not kept any more is deleted in part, when a later one is complete.
    Point("after", "remove", "commit_success.txt"),
)
PREPARE = (
    # Half a vocabulary.
    Point("half", "write", "vocab.model"),
    # A vocabulary without what it was trained on: it may be another text's.
    Point("before", "rename", "vocabulary.json"),
    # The first shard is finished; of the second the tokens are there, but not what they are.
    Point("before", "rename", "000000-000001.json"),
    # Everything but what makes the folder a corpus.
    Point("before", "rename", "manifest.json"),
    # A corpus without its report.
    Point("after", "rename", "manifest.json"),
)
# Other processes read and encode, and go on for a moment while the next start does the same.
WHILE_OTHERS_WORK = Point("before", "electra_jax.data.reading_ahead:read_fingerprints", time=2)
FINETUNE = (
    # The seed's answers are there; all of its model, under another name.
    Point("before", "rename", "models/seed-0"),
    # One of two seeds is finished.
    Point("after", "rename", "seeds/0.json"),
    # All seeds, without their summary.
    Point("before", "rename", "scores.json"),
)
CURVES = (
    # A folder without the file by which the next start could know it.
    Point("before", "rename", "curves.jsonl"),
    # Between two tables.
    Point("before", "rename", "heldout.jsonl"),
    # All tables; an earlier call's plots are deleted in part.
    Point("before", "remove", "average.png"),
)
EXPORT = (
    # Between two directories.
    Point("before", "rename", "encoder/config.json"),
    # All of them, under another name.
    Point("before", "rename", "exported"),
)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with commands(environment(), tmp_path_factory.mktemp("commands")) as started:
        yield started


@pytest.fixture(scope="module")
def prepared(forked, text_file, tmp_path_factory):
    """A text of two shards, and the corpus of an uninterrupted preparation."""
    folder = tmp_path_factory.mktemp("prepared")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"{number}. {text_file.read_text()}" for number in range(20)))
    finish(forked, prepare_arguments(text, folder / "corpus", "--workers=1"))
    return text, folder / "corpus"


@pytest.fixture(scope="module")
def trained(forked, prepared, tmp_path_factory):
    """The work directory of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    finish(forked, train(prepared[1], workdir))
    return workdir


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with the files of a small SST-2, as curves wants it."""
    folder = tmp_path_factory.mktemp("tasks")
    sst2_files(folder / "SST-2")
    return folder


def train(corpus: Path, workdir: Path) -> list[str]:
    return ["train", *train_arguments(corpus, workdir, *TRAINING, arg="objective=mlm")]  # compiles fastest


def assert_same_files(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    assert wanted
    assert found.keys() == wanted.keys()
    assert not [name for name in wanted if found[name] != wanted[name]]


def test_train(forked, prepared, trained, tmp_path):
    argv = train(prepared[1], tmp_path / "run")
    for point in TRAIN:
        kill(forked, argv, point)
    done = finish(forked, argv)
    assert "resuming from step 6" in done.out

    assert_same_bits(arrays(tmp_path / "run", STEPS), arrays(trained, STEPS))
    lines, metrics = logged(tmp_path / "run"), logged(trained)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line, want in zip(lines, metrics, strict=True):
        assert {name: line.get(name) for name in EQUAL} == {name: want.get(name) for name in EQUAL}
    # What was logged before there was a checkpoint is kept.
    assert entries(tmp_path / "run") - entries(trained) == {"metrics.1.jsonl"}
    assert entries(trained) <= entries(tmp_path / "run")


def entries(workdir: Path) -> set[str]:
    """What is in a run's folder and in that of its checkpoints."""
    return {str(path.relative_to(workdir)) for pattern in ("*", "checkpoints/*") for path in workdir.glob(pattern)}


@pytest.mark.parametrize("point", PREPARE, ids=str)
def test_prepare(point, forked, prepared, tmp_path):
    text, corpus = prepared
    output = tmp_path / "corpus"
    argv = prepare_arguments(text, output, "--workers=1")
    kill(forked, argv, point)
    finished = {path: path.stat().st_mtime_ns for path in output.glob("0*.json")}
    has_vocabulary = (output / "vocabulary.json").exists()
    done = finish(forked, argv)
    assert_same_files(contents(output), contents(corpus))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # not made again
    assert ("Training a vocabulary" in done.out) != has_vocabulary


def test_prepare_while_other_processes_work(forked, prepared, tmp_path):
    text, corpus = prepared
    argv = prepare_arguments(text, tmp_path / "corpus", "--workers=2")
    kill(forked, argv, WHILE_OTHERS_WORK)
    finish(forked, argv)
    assert_same_files(contents(tmp_path / "corpus"), contents(corpus))


def test_finetune(forked, trained, tasks, tmp_path):
    def argv(workdir: Path) -> list[str]:
        options = (f"--config={ROOT}/configs/glue.py:task=sst2,runlocal", "--config.seeds=2", "--config.epochs=1")
        folders = (f"--init_from={trained}", f"--data_dir={tasks / 'SST-2'}", f"--workdir={workdir}")
        return ["finetune", *options, *folders]

    finish(forked, argv(tmp_path / "whole"))
    for point in FINETUNE:
        kill(forked, argv(tmp_path / "killed"), point)
    finish(forked, argv(tmp_path / "killed"))
    assert_same_files(contents(tmp_path / "killed"), contents(tmp_path / "whole"))


def test_curves(forked, trained, tasks, tmp_path):
    def argv(output: Path) -> list[str]:
        options = ("--config.seeds=1", "--config.epochs=1", "--config.batch_size=4", "--paper=false")
        folders = (f"--data_dir={tasks}", f"--output={output}")
        return ["curves", "--runs", str(trained), "--tasks=sst2", *folders, *options]

    patterns = ("*.jsonl", "*.md", "scores.json", "seeds/*", "*.svg")
    finish(forked, argv(tmp_path / "whole"))
    for point in CURVES:
        kill(forked, argv(tmp_path / "killed"), point)
    finish(forked, argv(tmp_path / "killed"))
    assert_same_files(contents(tmp_path / "killed", *patterns), contents(tmp_path / "whole", *patterns))


def test_export(forked, trained, tmp_path):
    def argv(folder: Path) -> list[str]:
        return ["export", f"--workdir={trained}", f"--output={folder / 'exported'}"]

    finish(forked, argv(tmp_path / "whole"))
    for point in EXPORT:
        folder = tmp_path / str(EXPORT.index(point))
        kill(forked, argv(folder), point)
        assert not (folder / "exported").exists()
        finish(forked, argv(folder))
        assert_same_files(contents(folder / "exported"), contents(tmp_path / "whole" / "exported"))
        assert len(list(folder.iterdir())) == 2  # the other one is the killed one's
