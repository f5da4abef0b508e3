import errno

import pytest

from electra_jax.config import errors


def raising(error: BaseException):
    def main(argv):
        raise error

    return main


def test_a_users_mistake_is_one_line_and_status_2(capsys):
    assert errors.run(raising(errors.UserError("bad\n  thing")), []) == 2
    assert capsys.readouterr().err == "error: bad thing\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, "no space left"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_the_systems_refusals_name_place_and_way_out(capsys, code, expected):
    assert errors.run(raising(OSError(code, "x", "/some/where")), []) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: /some/where: ")
    assert expected in line
    assert line.count("\n") == 1


def test_memory_that_runs_out_is_one_line_too(capsys):
    assert errors.run(raising(MemoryError("Unable to allocate 9 TiB")), []) == 2
    assert capsys.readouterr().err.startswith("error: memory ran out (Unable to allocate 9 TiB); ask for less")
    with pytest.raises(MemoryError):
        errors.run(raising(MemoryError()), ["--debug"])


def test_debug_keeps_the_traceback_and_is_not_passed_on():
    seen = []

    def main(argv):
        seen.extend(argv)
        raise errors.UserError("bad")

    with pytest.raises(errors.UserError):
        errors.run(main, ["--debug", "--x=1"])
    assert seen == ["--x=1"]


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        errors.run(raising(ZeroDivisionError()), [])


def test_status_of_success_and_of_ctrl_c(capsys):
    assert errors.run(lambda argv: None, []) == 0
    assert errors.run(raising(KeyboardInterrupt()), []) == 130
    assert "goes on from what is finished" in capsys.readouterr().err
