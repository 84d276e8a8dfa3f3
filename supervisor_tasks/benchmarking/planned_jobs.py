"""The jobs of a benchmark run, as its plan says."""

from collections.abc import Iterable

from benchmarks.plan import Plan
from benchmarks.registry import Benchmark
from supervisor_tasks.benchmarking.benchmark_run import PlannedBenchmark

_EXCLUDE = "--exclude="


def jobs_of(
    plan: Plan, suite: Iterable[Benchmark], sbatch_flags: tuple[str, ...]
) -> list[PlannedBenchmark]:
    """Return the jobs of a run. The site's own sbatch options come first, but for its
    `--exclude`: of two, sbatch takes the last.
    """
    site_flags = list[str]()
    excluded_nodes = list[str]()
    for flag in sbatch_flags:
        if flag.startswith(_EXCLUDE):
            excluded_nodes.append(flag.removeprefix(_EXCLUDE))
        else:
            site_flags.append(flag)
    excluded_nodes.extend(plan.unlike_nodes)
    if excluded_nodes:
        site_flags.append(f"{_EXCLUDE}{','.join(excluded_nodes)}")
    planned = list[PlannedBenchmark]()
    for one in suite:
        job = one.render(plan)
        options = (*site_flags, *job.resource_flags())
        planned.append(
            PlannedBenchmark(benchmark=one.name, options=options, script=job.script)
        )
    return planned
