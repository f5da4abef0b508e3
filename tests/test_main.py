"""The command `electra-jax`, which is `python -m electra_jax`."""

import sys
from importlib import metadata

import pytest
from cli_runs import run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import electra_jax
from electra_jax import __main__
from electra_jax.config import errors
from electra_jax.config.errors import UserError

SLOW = ("jax", "flax", "ml_collections", "numpy", "rich")

IMPORTED = """
import sys
from electra_jax import __main__
status = __main__.main(["--help"])
print(",".join({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(status)
"""


def test_help_lists_the_subcommands_and_imports_no_slow_library():
    done = run([sys.executable, "-c", IMPORTED])
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in __main__.COMMANDS)
    assert not set(SLOW) & set(done.stderr.strip().split(","))


WITHOUT_EXTRAS = """
import contextlib, gc, io, sys
for name in {hidden}:
    sys.modules[name] = None  # importing it fails
from electra_jax import __main__
for name in __main__.COMMANDS:
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        status = __main__.main([name, "--help"])
    print(name, status, printed.getvalue().strip())
assert gc.isenabled() and gc.get_freeze_count() > 100_000  # what was imported is not walked through again
"""


def required(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """A distribution, and all that is installed with it."""
    names = {canonicalize_name(name)}
    for line in metadata.requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            key = canonicalize_name(needed.name), frozenset(needed.extras)
            if key not in _seen:
                _seen.add(key)
                names |= required(*key)
    return names


_seen: set[tuple[str, frozenset[str]]] = set()


def test_only_what_draws_or_scores_needs_an_extra():
    """Hides every module that `pip install electra_jax` does not bring: the README's first command must not need it."""
    brought = required("electra_jax")
    assert {"jax", "numpy", "rich"} < brought
    assert not {"matplotlib", "scikit-learn", "pytest"} & brought
    modules = metadata.packages_distributions()
    hidden = [name for name, by in modules.items() if not {canonicalize_name(each) for each in by} & brought]
    assert "matplotlib" in hidden
    done = run([sys.executable, "-c", WITHOUT_EXTRAS.format(hidden=hidden)])
    assert done.returncode == 0, done.stderr
    failed = {}
    for line in done.stdout.splitlines():
        name, status, *message = line.split(" ", 2)
        if status != "0":
            failed[name] = message[0]
    assert set(failed) == {"curves", "report"}
    assert all("pip install 'electra_jax[downstream]'" in message for message in failed.values())


@pytest.mark.parametrize("name", __main__.COMMANDS)
def test_every_subcommand_has_help(name, capsys):
    assert errors.run(__main__.run, [name, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_the_version_is_the_packages(capsys):
    assert __main__.run(["--version"]) == 0
    assert capsys.readouterr().out == f"electra_jax {electra_jax.__version__}\n"


def test_help_config_prints_every_setting_of_training(capsys):
    assert errors.run(__main__.run, ["train", "--help-config"]) == 0
    printed = capsys.readouterr().out
    for name in ("seed", "mesh.fsdp", "data.input", "model.modernbert.local_window", "optim.learning_rate"):
        assert f"  --config.{name}=" in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_an_unknown_subcommand_is_refused(capsys):
    with pytest.raises(UserError, match="unknown subcommand 'tran': expected one of train, prepare, detect"):
        __main__.run(["tran"])
    assert __main__.main(["tran"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown subcommand 'tran'")


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {imported!r}:
            os.kill(os.getpid(), signal.{signal})

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process inherits that Ctrl-C is ignored
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "arguments", "name", "imported"),
    [
        ("electra_jax", ["train"], "SIGINT", "electra_jax.runtime.console_errors"),
        ("electra_jax", ["train"], "SIGTERM", "jax"),
        ("electra_jax.train", [], "SIGINT", "electra_jax.runtime.console_errors"),
        ("electra_jax.train", [], "SIGTERM", "rich"),
    ],
)
def test_a_signal_during_imports_is_one_line(module, arguments, name, imported):
    code = INTERRUPTED.format(module=module, arguments=arguments, imported=imported, signal=name)
    done = run([sys.executable, "-c", code])
    status = {"SIGINT": 130, "SIGTERM": 143}[name]
    assert (done.returncode, done.stderr) == (status, "interrupted; run the same command again to continue\n")


def test_a_workdir_that_is_not_utf_8_is_one_line(tmp_path, capsys):
    assert __main__.main(["train", "--config=tiny:runlocal", f"--workdir={tmp_path}/\udcff"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: work directory '")
    assert err.endswith("' is invalid: expected UTF-8 without NUL; use another name\n")
    assert list(tmp_path.iterdir()) == []
