"""The variables that SLURM's commands read as options, and how a shell removes them.
Pure.

A site, or the admin's own start-up file, may set SQUEUE_FORMAT, SQUEUE_PARTITION,
SCANCEL_INTERACTIVE or SLURM_CLUSTERS for people. Such a variable overrides, or adds to,
the options of a command: squeue would print other fields, or leave jobs out. So a shell
removes all of them before it runs a command of the supervisor. It goes by the names'
beginnings, since each version of SLURM reads further ones.

The text is POSIX sh without ' ! \\ or line feeds, so that any login shell passes it on
unchanged. The shell forks once for it, and starts no program.
"""

from collections.abc import Sequence

# which SLURM is asked, and with which proof; no options
TO_REACH_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_*")
# the beginnings of the names that sbatch reads
OF_SBATCH = ("SBATCH_", "SLURM_")
# the same of all commands of SLURM that the supervisor runs
OF_ALL_COMMANDS = (
    *OF_SBATCH,
    *("SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_", "SQUEUE_"),
)


def without_variables(
    variable: str, beginnings: Sequence[str], kept: Sequence[str]
) -> str:
    """Return shell text that removes the environment's variables with these beginnings,
    but not those that `kept` names. It uses the shell variable `variable`, whose name
    no environment may have, and also unsets IFS and stops the expansion of file names.

    A word inside a value may look like an option's name. If it is a valid name, the
    shell unsets it too; if not, `command` keeps the shell from ending.
    """
    kept_words = "|".join(f"{name}=*" for name in kept)
    words = "|".join(f"{beginning}*" for beginning in beginnings)
    return (
        f"unset IFS; set -f; for {variable} in $(export -p); do case ${variable} in "
        f"{kept_words}) ;; "
        f'{words}) command unset -v "${{{variable}%%=*}}" 2>/dev/null;; esac; done; '
    )


# for each command but the guard's, which has its own
WITHOUT_OPTIONS = without_variables("supervisor_word", OF_ALL_COMMANDS, TO_REACH_SLURM)
