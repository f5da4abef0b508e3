import errno
import re
import subprocess
import sys

import pytest
from cli_runs import environment

from electra_jax.config import errors


def raising(error: BaseException):
    def main(argv):
        raise error

    return main


def test_a_user_error_is_one_line_and_status_2(capsys):
    assert errors.run(raising(errors.UserError("bad\n  thing")), []) == 2
    assert capsys.readouterr().err == "error: bad thing\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, "no space left"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_an_os_error_is_one_line_with_path_cause_and_advice(capsys, code, expected):
    assert errors.run(raising(OSError(code, "x", "/some/where")), []) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: /some/where: ")
    assert expected in line
    assert line.count("\n") == 1


def test_an_os_error_without_advice_keeps_its_own_text():
    assert errors.explain(ConnectionResetError(errno.ECONNRESET, "Connection reset")) == "Connection reset"
    assert errors.explain(OSError("odd")) == "odd"


def test_out_of_memory_is_one_line(capsys):
    assert errors.run(raising(MemoryError("Unable to allocate 9 TiB")), []) == 2
    assert capsys.readouterr().err.startswith("error: out of memory (Unable to allocate 9 TiB); use less")


@pytest.mark.parametrize("error", [errors.UserError("bad"), MemoryError(), OSError(errno.EACCES, "x")])
def test_debug_keeps_the_traceback_and_is_not_passed_on(error):
    seen = []

    def main(argv):
        seen.extend(argv)
        raise error

    with pytest.raises(type(error)):
        errors.run(main, ["--debug", "--x=1"])
    assert seen == ["--x=1"]


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        errors.run(raising(ZeroDivisionError()), [])


def test_status_of_success_and_of_ctrl_c(capsys):
    assert errors.run(lambda argv: None, []) == 0
    assert errors.run(lambda argv: 3, []) == 3
    assert errors.run(raising(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr().err == "interrupted; run the same command again to continue\n"


@pytest.mark.parametrize("argument", ["--x=a\0b", "--x=a\udcff"])
def test_a_path_that_cannot_exist_is_one_line(argument, capsys):
    def main(argv):
        with open(argv[0].partition("=")[2].replace("\udcff", "\ud800")):
            pass

    assert errors.run(main, [argument]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: argument {argument!r} is invalid: expected UTF-8 without NUL")
    assert line.count("\n") == 1
    with pytest.raises(ValueError, match=r"embedded null|surrogates"):
        errors.run(main, ["--debug", argument])


def test_a_value_error_that_no_argument_explains_keeps_its_traceback():
    for error in (ValueError("embedded null byte"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "x"), ValueError("x")):
        with pytest.raises(ValueError, match=re.escape(str(error))):
            errors.run(raising(error), ["--x=1"])


def test_an_error_shows_control_characters_of_others_and_does_not_send_them_to_the_terminal(capsys):
    assert errors.run(raising(errors.UserError("the file a\x1b]0;title\x07\u202e.json")), []) == 2
    assert capsys.readouterr().err == "error: the file a\\x1b]0;title\\x07\\u202e.json\n"


def test_first_line():
    assert errors.first_line(ValueError("\none\ntwo")) == "one"
    assert errors.first_line(KeyError()) == "KeyError"


CLOSED = """
import sys
from electra_jax.config import errors
sys.exit(errors.run(lambda argv: print("x" * int(argv[0]))))
"""


@pytest.mark.parametrize("size", [1, 1_000_000])  # less than a buffer, and more
def test_a_closed_standard_output_ends_the_command_in_silence(size):
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSED, str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == errors.EXIT_BROKEN_PIPE
    process.stderr.close()


def test_another_broken_pipe_is_an_error(capsys):
    assert errors.run(raising(BrokenPipeError(errno.EPIPE, "Broken pipe")), []) == 2
    assert capsys.readouterr().err == "error: Broken pipe\n"
