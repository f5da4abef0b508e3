import json
import subprocess
import sys

from cli_runs import run
from tensorboardX.proto import event_pb2

from electra_jax.runtime import metric_writers


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_line_for_each_step_and_null_for_what_is_no_number(tmp_path):
    writer = metric_writers.MetricsWriter(tmp_path, 0)
    writer.write(1, {"loss": 2.5, "mfu": None, "disc_auc": float("nan")})
    assert lines(tmp_path) == [{"step": 1, "loss": 2.5, "mfu": None, "disc_auc": None}]  # before it is closed
    writer.write(2, {"loss": 2.0})
    writer.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_what_was_written_after_the_checkpoint_is_dropped_on_the_way_back(tmp_path):
    writer = metric_writers.MetricsWriter(tmp_path, 0)
    for step in (2, 4, 6):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "lo')  # a kill in the middle of a line
    writer = metric_writers.MetricsWriter(tmp_path, 4)
    writer.write(6, {"loss": 60.0})
    writer.close()
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(2, 2.0), (4, 4.0), (6, 60.0)]


def test_tensorboard_gets_the_same_numbers(tmp_path):
    writer = metric_writers.MetricsWriter(tmp_path, 0)
    writer.write(3, {"loss": 2.5, "mfu": None})
    writer.close()
    data = next((tmp_path / "tensorboard").iterdir()).read_bytes()
    events = []
    while data:  # a record: length (8), its checksum (4), the event, its checksum (4)
        length = int.from_bytes(data[:8], "little")
        events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    found = [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    assert found == [(3, "loss", 2.5)]


FULL = """
import resource, sys
from pathlib import Path
from electra_jax.runtime.metric_writers import MetricsWriter
writer = MetricsWriter(Path(sys.argv[1]), 0)
writer._file = open("/dev/null", "w")  # whose disk is not full
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    for step in range(1000):
        writer.write(step, {"loss": 1.0})
except OSError as error:
    print(error.strerror)
"""


def test_a_disk_that_tensorboard_fills_is_an_error_and_not_waited_for(tmp_path):
    done = run([sys.executable, "-c", FULL, str(tmp_path)])
    assert done.stdout == "File too large\n", done.stderr
    assert "Traceback" not in done.stderr


def test_the_environment_says_what_ran():
    found = metric_writers.environment()
    assert found["devices"] == ["cpu"] * 8
    assert found["packages"].keys() >= {"jax", "flax", "optax", "orbax-checkpoint"}
    json.dumps(found)


def test_the_commit_is_not_that_of_a_repository_around_the_package(tmp_path, monkeypatch):
    installed = tmp_path / "venv" / "metric_writers.py"
    installed.parent.mkdir()
    installed.write_text("")
    (tmp_path / ".gitignore").write_text("venv\n")
    person = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*person, "commit", "-qm", "thesis"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    monkeypatch.setattr(metric_writers, "__file__", str(installed))
    assert metric_writers.environment()["commit"] is None
    subprocess.run(["git", "-C", str(tmp_path), "add", "--force", str(installed)], check=True)
    assert metric_writers.environment()["commit"].endswith("-dirty")


def test_pytorch_is_not_imported_with_the_writers(tmp_path):
    """It would take seconds of each start where it is installed."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import electra_jax.runtime.metric_writers"
    program += "; assert 'torch' not in sys.modules; import torch"
    done = run([sys.executable, "-c", program])
    assert done.stderr.endswith("RuntimeError: imported\n")
