"""`electra-jax flops`, called in this process."""

import json
from typing import Any

import pytest
from cli_runs import ROOT

from electra_jax.commands.flops import main
from electra_jax.config import errors
from electra_jax.data import pipeline
from electra_jax.data.config import CorpusConfig
from electra_jax.data.local_runner import LocalRunner
from electra_jax.flops import devices

RUNS = (
    *("elmo", "gpt", "xlnet", "bert_small", "bert_base", "bert_large"),
    *("electra_small", "electra_base", "electra_400k", "electra_1.75M", "roberta", "albert", "t5_11b"),
)
ACCOUNTINGS = ("model", "paper")
BASE = f"--config={ROOT}/configs/base.py"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def read_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def cells(out: str) -> dict[str, list[str]]:
    """Of a printed table's rows: the first cell, and the others."""
    lines = [line.strip().strip("│").split("│") for line in out.splitlines() if line.strip().startswith("│")]
    rows = [[cell.strip() for cell in line] for line in lines]
    return {first: rest for first, *rest in rows}


def test_without_arguments_the_papers_runs(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    rows = cells(out)
    assert [name for name in rows if name in RUNS] == list(RUNS)
    assert rows["electra_base"] == ["6.4e+19", "6.424542e+19", "6.4258e+19", "6.7102e+19"]
    assert rows["t5_11b"] == ["-", "4.581900e+22", "4.5819e+22", "-"]
    assert rows["electra_small_128 6.25%"][:2] == ["8.9e+16", "8.900315e+16"]


def test_json_has_the_same_numbers(capsys):
    rows = read_json(capsys)
    main([])
    printed = cells(capsys.readouterr().out)
    assert [row["run"] for row in rows][: len(RUNS)] == list(RUNS)
    for row in rows:
        as_printed = f"{row['printed']:.1e}" if row["printed"] is not None else "-"
        model = f"{row['model']:.4e}" if row["model"] is not None else "-"
        assert printed[row["run"]] == [as_printed, f"{row['paper']:.6e}", f"{row['paper_corrected']:.4e}", model]


def test_muon_has_a_share(capsys):
    (stage,) = read_json(capsys, BASE, "--config.optim.name=muon")["segments"]
    alone, added = sum(stage["model"]["optimizer"].values()), stage["paper"]["optimizer"].values()
    assert 0.01 * stage["model"]["total"] < alone < 0.03 * stage["model"]["total"]
    assert not any(added)


def test_a_config_has_its_tokens_parts_and_totals(capsys):
    run = read_json(capsys, BASE)
    assert (run["objective"], run["steps"], run["batch"], run["length"]) == ("electra", 766_000, 256, 512)
    assert run["tokens"] == pytest.approx(100.4e9, rel=5e-4)
    (stage,) = run["segments"]
    assert stage["steps"] == 766_000
    for accounting in ACCOUNTINGS:
        networks = {name: parts for name, parts in stage[accounting].items() if name != "total"}
        assert set(networks) == {"generator", "encoder"}
        assert all(set(parts) == {"embeddings", "attention", "ffn", "head", "softmax"} for parts in networks.values())
        parts = [value for of_network in networks.values() for value in of_network.values()]
        assert sum(parts) == pytest.approx(stage[accounting]["total"], rel=1e-12)
        assert stage["steps"] * sum(parts) == pytest.approx(run["total"][accounting], rel=1e-12)
    assert run["total"]["paper"] == pytest.approx(6.4245418343e19, rel=5e-7)


def test_hours_on_every_device(capsys):
    run = read_json(capsys, BASE)
    assert (run["chips"], run["mfu"], run["precision"]) == (8, 0.4, "bfloat16")
    assert list(run["hours"]) == list(devices.PEAK_FLOPS)
    for kind, hours in run["hours"].items():
        chip = devices.peak(kind, "bfloat16") * (2 if kind in ("TPU v2", "TPU v3", "TPU7x") else 1)
        assert hours == pytest.approx(run["total"]["model"] / (8 * chip * 0.4) / 3600)


def test_hours_on_one_device(capsys):
    run = read_json(capsys, BASE, "--device=TPU v3", "--chips=16", "--mfu=0.5")
    # 16 chips of 123e12, half of it: some 19 hours for 6.71e19.
    assert run["hours"] == {"TPU v3": pytest.approx(run["total"]["model"] / (16 * 123e12 * 0.5) / 3600)}
    by_alias = read_json(capsys, BASE, "--device=TPU v5 lite")["hours"]
    assert by_alias == {"TPU v5 lite": read_json(capsys, BASE, "--device=TPU v5e")["hours"]["TPU v5e"]}


def test_hours_depend_on_the_precision(capsys):
    device = "--device=NVIDIA A100-SXM4-80GB"
    bfloat16 = read_json(capsys, BASE, device)
    float32 = read_json(capsys, BASE, device, "--config.model.dtype=float32")
    assert float32["precision"] == "float32"
    assert float32["total"] == bfloat16["total"]
    assert list(float32["hours"].values()) == pytest.approx([2 * hours for hours in bfloat16["hours"].values()])


def test_two_stages(capsys):
    run = read_json(capsys, f"{BASE}:objective=two_stage", "--config.objective.generator_steps=100000")
    first, second = run["segments"]
    assert (first["steps"], second["steps"]) == (100_000, 666_000)
    for accounting in ACCOUNTINGS:
        assert set(first[accounting]) == {"total", "generator"}
        assert set(second[accounting]) == {"total", "generator", "encoder"}
        together = sum(stage["steps"] * stage[accounting]["total"] for stage in (first, second))
        assert run["total"][accounting] == pytest.approx(together, rel=1e-12)


def test_a_config_without_a_generator(capsys):
    (stage,) = read_json(capsys, f"{BASE}:objective=mlm")["segments"]
    assert set(stage["model"]) == {"total", "encoder"}


def test_a_config_in_tables(capsys):
    assert main([BASE, "--device=TPU v3", "--chips=16"]) == 0
    out = capsys.readouterr().out
    assert "electra: 766,000 steps x 256 x 512, 100.4G tokens" in out
    assert "6.4245e+19 (paper)" in out
    run = read_json(capsys, BASE, "--device=TPU v3", "--chips=16")
    assert cells(out)["TPU v3"] == ["16", f"{run['hours']['TPU v3']:,.1f}"]
    assert f"{run['total']['model']:.4e} FLOPs (model)" in out
    assert main([f"{BASE}:objective=two_stage"]) == 0
    assert capsys.readouterr().out.count("(383,000 such steps)") == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([BASE, "--device=TPU v99"], "TPU v99"),
        ([BASE, "--device=cpu"], "cpu"),
        (["--device=TPU v3"], "need a run; add --config=base"),
        ([BASE, "--chips=0"], "chips=0 is invalid: expected an integer, 1 or more"),
        ([BASE, "--mfu=2"], "mfu=2.0 is invalid: expected more than 0, at most 1"),
        ([BASE, "--cores=3"], "--cores"),
        (["--config.model.layers=3"], "--config"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, arguments, named):
    assert errors.run(main, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err


def test_a_prepared_text_says_how_large_the_vocabulary_is(capsys, text_file, tmp_path):
    settings = CorpusConfig(input=str(text_file), vocab_size=40, heldout_fraction=0.1)
    pipeline.build_corpus(tmp_path, settings, LocalRunner(1))
    small = read_json(capsys, BASE, f"--config.data.input={tmp_path}")
    assert small["total"] == read_json(capsys, BASE, "--config.data.vocab_size=40")["total"]
    assert small["total"]["model"] < read_json(capsys, BASE)["total"]["model"]
    vocabulary = f"--config.data.vocabulary={tmp_path / 'vocab.model'}"
    assert read_json(capsys, BASE, vocabulary)["total"] == small["total"]  # of other text, which is not prepared yet
