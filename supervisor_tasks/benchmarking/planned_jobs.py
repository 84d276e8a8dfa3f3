"""The jobs of a benchmark run, as its plan says."""

from collections.abc import Iterable

from benchmarks.plan import Plan
from benchmarks.registry import Benchmark
from supervisor_tasks.benchmarking.benchmark_run import PlannedBenchmark


def jobs_of(
    plan: Plan, suite: Iterable[Benchmark], sbatch_flags: tuple[str, ...]
) -> list[PlannedBenchmark]:
    """Return the jobs of a run. The site's own sbatch options come first."""
    planned = list[PlannedBenchmark]()
    for one in suite:
        job = one.render(plan)
        options = (*sbatch_flags, *job.resource_flags())
        planned.append(
            PlannedBenchmark(benchmark=one.name, options=options, script=job.script)
        )
    return planned
