import pytest

from electra_jax import models
from electra_jax.commands import card
from electra_jax.config import errors


def test_prints_or_writes_the_card_as_it_is(small_run, tmp_path, capsys):
    arguments = [f"--workdir={small_run}", "--name=generator", "--step=0"]
    assert errors.run(card.main, arguments) == 0
    expected = models.card(small_run, "generator", step=0)
    assert capsys.readouterr().out == expected
    assert errors.run(card.main, [*arguments, f"--output={tmp_path / 'README.md'}"]) == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--workdir is missing"),
        (["--workdir=runs/none"], "work directory of a run"),
        (["--name=decoder"], "name='decoder' is invalid: expected discriminator or encoder or generator"),
        (["--average=2", "--scores=runs/cola"], "scores are those of one checkpoint"),
        (["--output=/"], "--output=/ is a folder: expected a file, such as /README.md"),
    ],
)
def test_invalid_arguments_are_one_line(arguments, message, small_run, capsys):
    run = [f"--workdir={small_run}"] if arguments and "--workdir" not in arguments[0] else []
    assert errors.run(card.main, [*run, *arguments]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line
