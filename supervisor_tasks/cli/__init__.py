"""The operator's command: it shows the ledger, and carries out the few decisions that
only an operator can make.

It uses only the ledger: no key, no chain, no SLURM. These commands use more. `benchmark
plan` asks SLURM for the nodes. `job adopt` asks the chain for activity of the lost
ledger's fleet. `doctor` and `config check` try all that the settings name, with the
keys that are set. Apart from `run`, `metrics` and `db upgrade --embedded`, it starts no
server and makes no folder. It shows text of strangers as data.
"""

from supervisor_tasks.config.first_process import end_on_signal

end_on_signal()  # before the other imports, which take long

import os  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402

# a shell that asks for completions sets this variable
COMPLETE = "_SUPERVISOR_COMPLETE"


def main(words: Sequence[str] | None = None) -> None:
    """Run the command of these words, or of the command line without them, and end the
    process with its status.

    Orchestrators call `health` every few seconds, and `run` starts every process: both
    work without typer, whose import takes longer than all that they do.
    """
    # commands read keys, and so do the processes that `run` starts
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["health"]:
        from supervisor_tasks.cli.health_command import main as health

        sys.exit(health(words[1:]))
    if words[:1] == ["run"]:
        from supervisor_tasks.cli.run_command import main as run

        run(words[1:])
    from supervisor_tasks.cli.app import app

    if os.environ.get(COMPLETE):
        from supervisor_tasks.cli.completion import answer_shells

        answer_shells()
    app(args=list(words), prog_name="supervisor")
