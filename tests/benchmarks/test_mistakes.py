"""Mistakes that the scripts for speed notice before they measure."""

import importlib

import extras
import pytest
import serving

from electra_jax.config import errors


@pytest.mark.parametrize(
    ("script", "argv", "message"),
    [
        ("step", ["--variants", "unrolled", "torhc"], "--variants='torhc' is invalid: expected torch or compiled"),
        ("step", ["--config=smal"], "config smal does not exist"),
        ("step", ["--config=modern", "--variants", "torch"], "no variant can run with --config=modern"),
        ("loader", [], "--input is missing"),
        ("loader", ["--input=x", "--rounds=0"], "--rounds=0 is invalid: expected more than 0"),
        ("gpu_forecast", ["--only=nothing"], "--only=nothing is in no name of a step"),
    ],
)
def test_a_mistake_is_one_line(script, argv, message, monkeypatch, capsys):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".6")  # `step` sets it
    assert errors.run(importlib.import_module(script).main, argv) == errors.EXIT_USER_ERROR
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_package_that_is_missing_is_one_line(capsys):
    with pytest.raises(SystemExit) as end, extras.needed("pip install it"):
        importlib.import_module("a_package_that_nobody_has")
    assert end.value.code == errors.EXIT_USER_ERROR
    assert capsys.readouterr().err == "error: a_package_that_nobody_has is not installed; pip install it\n"


def test_texts_are_lines_that_are_not_blank(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"\n text {n} \n" for n in range(12)))
    assert serving.read_texts(str(file), 11) == [f"text {n}" for n in range(11)]
    file.write_text("text\n\n")
    with pytest.raises(errors.UserError, match="has 1 lines: expected 10 or more"):
        serving.read_texts(str(file), 300)
