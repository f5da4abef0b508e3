"""`electra-jax verify`: checks every file of runs and prepared corpora."""

from pathlib import Path

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.loading.verify import verify
from electra_jax.runtime.console import PlainConsole

USAGE = """\
usage: electra-jax verify DIR [DIR ...]

Reads every file of a run or of a prepared corpus and compares it with the checksums that were written with it. Prints a
line for each thing, `ok` or `WRONG` and what to do; the exit status is 2 if anything is wrong. It changes nothing.

  DIR  the work directory of a run: its config, every array of every checkpoint, vocabulary, corpus and logs are
       checked. Or the folder of a prepared corpus"""


def main(argv: list[str]) -> int:
    folders: list[str] = []
    cli.parse(argv, USAGE, {}, folders)
    if not folders:
        raise UserError("no folder is given: expected one, such as electra-jax verify runs/tiny; see --help")
    console = PlainConsole()
    checked = wrong = 0
    for folder in folders:
        for finding in verify(Path(folder)):
            console.print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.text}")
            checked, wrong = checked + 1, wrong + (not finding.ok)
    if wrong:
        raise UserError(f"{wrong} of {checked} checks failed; the lines that begin with WRONG say what to do")
    return 0
