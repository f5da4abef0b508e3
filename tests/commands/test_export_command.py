import pytest

from electra_jax.commands import export
from electra_jax.config import errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output=out"], "--workdir is missing"),
        (["--workdir=runs/none"], "--output is missing"),
        (["--workdir=runs/none", "--output=out"], "work directory of a run"),
        (["--workdir=runs/none", "--model=x", "--output=out"], "--workdir and --model were both given: expected one"),
        (["--model=runs/none", "--output=out"], "--model=runs/none was not fine-tuned; export a run with --workdir"),
        (["--workdir=runs/none", "--output=out", "--as=gpt"], "--as='gpt' is invalid: expected bert"),
        (["--workdir=runs/none", "--output=out", "--dtype=int8"], "--dtype='int8' is invalid: expected float32 or fl"),
    ],
)
def test_invalid_arguments_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert errors.run(export.main, arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line
    assert list(tmp_path.iterdir()) == []


OPTIONS = ["--dtype=float16", "--layers=1", "--average=2", "--step=3", "--as=bert", "--sentence_transformers"]
OPTIONS += ["--scores=x"]


def refusal(folder, arguments, capsys):
    """The error of a command that exports the Hugging Face directory `folder`."""
    assert errors.run(export.main, [f"--model={folder}", f"--output={folder.parent / 'out'}", *arguments]) == 2
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    return capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], *(["--onnx", option] for option in OPTIONS)])
def test_of_another_trainers_model_only_onnx_files_are_new(arguments, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    found = refusal(tmp_path / "in", arguments, capsys)
    assert "is a Hugging Face directory: expected onnx and no other option, to add ONNX files" in found


def test_another_trainers_model_is_one_that_this_package_reads(tmp_path, capsys):
    for package in ("torch", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert "in/config.json has model_type='gpt2': expected" in refusal(tmp_path / "in", ["--onnx"], capsys)


def test_each_directory_is_printed_with_its_class(tmp_path, monkeypatch, capsys):
    calls = []
    options = {"average": 1, "sentence_transformers": False, "layers": 0, "onnx": False, "dtype": "float32"}
    options |= {"as_bert": False, "scores": []}

    def fake_export(workdir, output, step, **given):
        assert given.keys() == options.keys()
        calls.append((workdir, output, step, {name: value for name, value in given.items() if value != options[name]}))
        return {"encoder": "ElectraModel"}

    monkeypatch.setattr(export.models, "export", fake_export)
    assert errors.run(export.main, ["--workdir=run", f"--output={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/encoder: ElectraModel\n"
    more = ["--step=0"], ["--sentence_transformers", "--layers=2"], ["--onnx"], ["--as=bert"]
    for arguments in (*more, ["--dtype=float16", "--scores=a;b;"]):
        assert errors.run(export.main, ["--workdir=run", "--output=out", *arguments]) == 0
    assert calls == [
        ("run", str(tmp_path), None, {}),
        ("run", "out", 0, {}),
        ("run", "out", None, {"sentence_transformers": True, "layers": 2}),
        ("run", "out", None, {"onnx": True}),
        ("run", "out", None, {"as_bert": True}),
        ("run", "out", None, {"dtype": "float16", "scores": ["a", "b"]}),
    ]


def test_help_names_every_directory(capsys):
    assert errors.run(export.main, ["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"OUT/{name}" in text for name in ("discriminator", "masked_lm", "generator", "encoder"))
