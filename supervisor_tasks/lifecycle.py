"""What a worker does before its first task, when it is ready, and at its end. Work that
is under way ends before that: `goes_on` tells jobs/batch.py to lease nothing more.
"""

import gc
from collections.abc import Callable, Mapping
from threading import Lock

import structlog
from celery.worker import state as this_worker

from supervisor_tasks.benchmarking.cleanup import BENCHMARK_CLEANUP_REQUESTED
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.indexer.new_blocks import NewBlocks
from supervisor_tasks.jobs.batch import Batch
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.wallet_holders import OtherChainError, WalletTakenError
from supervisor_tasks.monitoring.slurm_health import reset_failure_count

log = structlog.get_logger()

# Tasks that a start requests; the others wait for beat.
AT_START = (
    "check_slurm",
    "scan",
    "register",
    "refresh_inventory",
    "dispatch_due_effects",
    "sweep",
)
WRONG_SETTINGS = 2  # the exit status of a process that cannot work with its settings


def goes_on() -> bool:
    """Return whether the worker continues: Celery has not asked it to end."""
    return this_worker.should_stop is None or this_worker.should_stop is False


class Worker:
    """A worker process: its context, its batches, and the thread that searches for new
    blocks.

    `hold_wallet` stores that this cluster works with the wallet; it is None in a worker
    without the wallet's key.
    """

    def __init__(
        self,
        context: WorkerContext,
        batches: Mapping[EffectKind, Batch],
        dispatch: Callable[[str], None],
        new_blocks: NewBlocks | None = None,
        hold_wallet: Callable[[], None] | None = None,
    ) -> None:
        self.context = context
        self.batches = batches
        self._dispatch = dispatch
        self._new_blocks = new_blocks
        self._hold_wallet = hold_wallet  # None: no key, or held already
        self._has_begun = False
        self._is_ready = False
        self._watches_blocks = False
        self._lock = Lock()
        # Without this, each full garbage collection goes through all objects of the
        # imports: a sweep of 10,000 jobs took 1.08 s instead of 0.91 s.
        gc.collect()
        gc.freeze()

    def hold_wallet(self) -> None:
        """Store in the ledger that this cluster works with the wallet whose key the
        worker has, if it has one.

        Raises WalletTakenError, when another cluster works with it, or OtherChainError,
        when the ledger has read another chain; a retry does not help. Raises
        LedgerUnavailableError, when the database does not answer; a retry helps. Safe
        to repeat.
        """
        if self._hold_wallet is not None:
            self._hold_wallet()
            self._hold_wallet = None

    def begin(self) -> None:
        """Store a start's requests in the ledger before the worker's first task: there
        no broker can lose them.

        Raises LedgerUnavailableError; the next task tries again. Raises
        WalletTakenError or OtherChainError; then the worker ends.
        """
        with self._lock:
            if not self._has_begun:
                self._hold_wallet_or_end()
                self._watch_blocks()
                self._store_requests()
                self._has_begun = True

    def _hold_wallet_or_end(self) -> None:
        """Hold the wallet if the ledger did not answer when the worker started."""
        try:
            self.hold_wallet()
        except WalletTakenError as error:
            log.critical(
                "wallet_used_by_other_cluster",
                error=str(error),
                advice="the worker ends",
            )
            this_worker.should_stop = WRONG_SETTINGS
            raise
        except OtherChainError as error:
            log.critical(
                "ledger_read_other_chain",
                error=str(error),
                advice="the worker ends",
            )
            this_worker.should_stop = WRONG_SETTINGS
            raise

    def _store_requests(self) -> None:
        ledger, chain = self.context.ledger, self.context.chain_services
        reset_failure_count(ledger)
        ledger.facts.set(BENCHMARK_CLEANUP_REQUESTED, True)
        ledger.reconciliations.request("a worker has started")
        if chain is not None:
            # for the workers without the wallet's key
            is_new = ledger.facts.set(PROVIDER, chain.contract.provider)
            if is_new:
                ledger.reconciliations.request(
                    f"the provider is {chain.contract.provider}"
                )
        if self.context.directory is not None:
            ledger.effects.bring_forward([EffectKind.ACCOUNT])
        if self.context.benchmark_services is not None:
            ledger.benchmarks.resume()
        ledger.incidents.make_all_due()

    def on_ready(self) -> None:
        """Dispatch the tasks that a start requests. If a message is lost, the task only
        runs later.
        """
        for name in AT_START:
            self._dispatch(name)
        with self._lock:
            self._is_ready = True
            self._watch_blocks()

    def _watch_blocks(self) -> None:
        """Start the thread that claims jobs of new blocks, once the worker is ready and
        its cluster holds the wallet.
        """
        if self._new_blocks is None or self._watches_blocks:
            return
        wallet_is_held = self._hold_wallet is None
        if self._is_ready and wallet_is_held:
            self._new_blocks.start()
            self._watches_blocks = True

    def close(self) -> None:
        """Close the threads and connections."""
        if self._new_blocks is not None:
            self._new_blocks.close()
        for batch in self.batches.values():
            batch.close()
        if self.context.slurm_services is not None:
            self.context.slurm_services.cluster.close()
        self.context.tracer.close()  # before the ledger, which it reads
        self.context.ledger.holder.close()
        self.context.ledger.engine.dispose()
