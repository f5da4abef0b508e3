"""Which changes to ELECTRA's recipe pay, at equal FLOPs.

    python benchmarks/ablations.py --input='text/*.txt.xz' --data_dir=glue --output=OUT --shape=3x128
        [--results=benchmarks/results/ablations.jsonl] [--flops=1e13] [--hours=1000] [--workers=2] [--dry_run]
    python benchmarks/ablations.py --draw=FOLDER --shape=3x128 [--flops=1e13] [--results=...]

Every run is `electra` with the settings of benchmarks/ladder.py, ends at the end of its schedule, and is judged by word
order (benchmarks/frozen.py). First learning rates of Adam and of Muon are chosen with --flops on a seed that is not
reported. The better one, with three seeds, is the base. Each change to it (`ablations_plan.VARIANTS`) is trained with
half of the FLOPs, as the base is once more, with the first of these seeds, and with the others unless it is far behind
the base. OUT can be that of benchmarks/ladder.py: the text is the same. Stopped at any moment, the same command goes
on.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ladder
from ablations_plan import ASSUMED, Plan, report
from job_queue import Job, Results, ResultsFile
from ladder_jobs import Shape

from electra_jax.config import cli, errors
from electra_jax.runtime.io import write_whole

TABLE = "ablations.md"
_OPTIONS: Mapping[str, Any] = {
    **ladder.OPTIONS,
    "results": "benchmarks/results/ablations.jsonl",
    "flops": 1e13,
    "shape": "",
}


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    output, shape = Path(chosen["output"]), Shape(1, 32)
    if not chosen["job"]:
        layers, _, width = chosen["shape"].partition("x")
        if not (layers.isdecimal() and width.isdecimal()):
            raise errors.UserError(f"--shape={chosen['shape']} is invalid: expected layers and width, such as 3x128")
        shape = Shape(int(layers), int(width))

    def plan(done: Results, assumed: Mapping[str, Any] | None = None) -> list[Job]:
        return Plan(done, output / "runs", shape, chosen["flops"], assumed).jobs()

    if chosen["draw"]:
        text = report(Plan(ResultsFile(Path(chosen["results"])).read(), output, shape, chosen["flops"]))
        Path(chosen["draw"]).mkdir(parents=True, exist_ok=True)
        write_whole(Path(chosen["draw"]) / TABLE, text)
        print(text, end="")
        return 0
    return ladder.run(__file__, chosen, plan, ASSUMED)


if __name__ == "__main__":
    sys.exit(errors.run(main))
