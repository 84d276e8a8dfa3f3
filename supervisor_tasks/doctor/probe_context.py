"""What the probes share: the settings, and what several of them need, each made
once.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.request import getproxies, proxy_bypass

from eth_account import Account
from sqlalchemy import Engine

from supervisor_tasks.bootstrap import slurm_services
from supervisor_tasks.chain.contract import Contract, Demand
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.config.embedded_servers import running_database_url
from supervisor_tasks.config.needs import Need, SlurmAccess, required_with, slurm_access
from supervisor_tasks.config.settings import Settings, SettingsError, load
from supervisor_tasks.context import SlurmServices
from supervisor_tasks.doctor.check_results import NotTriedError
from supervisor_tasks.doctor.probe_runner import MARGIN_S, LazyResource
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.doctor_queries import last_customer, server_version
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.slurm.cluster import over_ssh
from supervisor_tasks.slurm.commands import show_config
from supervisor_tasks.slurm.interface import Controller
from supervisor_tasks.slurm.parsers import CommandAnswer

CONNECT_S = 3.0  # for a connection, so that what needs it still has time
MAX_CONNECTIONS = 3  # to the database, which keeps most of its own for the fleet
# of leaving out malformed variables; what is left can be incomplete, and fail in the
# next round
MAX_ROUNDS = 3
PROXIED = "HTTPS_PROXY is set, and this row would connect directly"


def is_proxied(host: str) -> bool:
    """Whether this process reaches the host through a proxy, by the variables that
    HTTPS_PROXY and NO_PROXY name, in lower case too.
    """
    return "https" in getproxies() and not proxy_bypass(host)


@dataclass(frozen=True)
class ProbeContext:
    """What the probes share. `customer` is the one whose login is tried, if one is
    named.
    """

    settings: Settings
    until_s: float
    customer: str | None = None

    @cached_property
    def url(self) -> LazyResource[str]:
        """The ledger's URL. Raises NoDatabaseError; a retry helps once a fleet has
        started its Postgres.
        """
        return self._once("the database", lambda: running_database_url(self.settings))

    @cached_property
    def engine(self) -> LazyResource[Engine]:
        """The ledger's database, which answers."""
        return self._once("the database", self._engine)

    @cached_property
    def chain(self) -> LazyResource[tuple[Contract, Demand]]:
        """The contract as the provider sees it, and its jobs for the provider."""
        return self._once("the contract", self._chain)

    @cached_property
    def slurm(self) -> LazyResource[SlurmServices]:
        """SLURM: behind a login node that lets the admin user in, or behind
        slurmrestd.
        """
        return self._once("the login node", self._slurm)

    @cached_property
    def controller(self) -> LazyResource[Controller]:
        """What slurmctld reports about itself."""
        return self._once(
            "slurmctld", lambda: self.slurm.needed().cluster.site.controller()
        )

    @cached_property
    def slurm_config(self) -> LazyResource[CommandAnswer]:
        """What `scontrol show config` prints on the login node."""
        return self._once("slurmctld's configuration", self.ask_slurm_config)

    @cached_property
    def login(self) -> LazyResource[Address]:
        """The customer whose login works."""
        return self._once("the customer's login", self._login)

    def ask_slurm_config(self) -> CommandAnswer:
        """What `scontrol show config` prints at this moment. Raises NotTriedError; a
        retry does not help.
        """
        login_node = over_ssh(self.slurm.needed().cluster).login_node
        self.controller.needed()
        argv = show_config(login_node.paths.scontrol)
        return login_node.ssh.run(login_node.admin, argv, timeout_s=CONNECT_S)

    @property
    def ledger(self) -> Ledger:
        """The ledger, for reading. Raises NotTriedError; a retry does not help."""
        return Ledger(
            self.engine.needed(), self.settings.cluster_name, dispatch=lambda _: None
        )

    def provider(self) -> str:
        """The provider's address: of the key, or as a worker has stored it. Raises
        NotTriedError; a retry does not help.
        """
        if self.settings.eth_private_key is not None:
            address: str = Account.from_key(
                self.settings.eth_private_key.get_secret_value()
            ).address
            return address.lower()
        stored = self.ledger.facts.get(PROVIDER)
        if stored is None:
            raise NotTriedError(
                "ETH_PRIVATE_KEY is not set here, and no worker has stored the provider's address"
            )
        return stored

    def close(self) -> None:
        """Close the connections that were made. What still hangs ends with the
        process.
        """
        # of the cached properties, only those that a probe has read
        asked_for = self.__dict__
        if "engine" in asked_for and self.engine.is_made:
            self.engine.get().dispose()
        if "slurm" in asked_for and self.slurm.is_made:
            self.slurm.get().cluster.close()

    def _once(self, name: str, make: Any) -> LazyResource[Any]:
        return LazyResource(name, make, self.until_s - MARGIN_S)

    def _engine(self) -> Engine:
        engine = open_engine(self.url.get(), MAX_CONNECTIONS)
        server_version(engine)
        return engine

    def _chain(self) -> tuple[Contract, Demand]:
        settings = self.settings
        rpc = Endpoints(settings.rpc_urls, settings.chain_id)
        contract = Contract(
            rpc,
            settings.chain_id,
            settings.metascheduler_smart_contract,
            Address(self.provider()),
        )
        return contract, contract.demand()

    def _slurm(self) -> SlurmServices:
        if self.settings.slurm_access is SlurmAccess.REST:
            self.require_rest()
            return slurm_services(self.settings, connect_timeout_s=CONNECT_S)
        self.require_ssh()
        services = slurm_services(self.settings, connect_timeout_s=CONNECT_S)
        login_node = over_ssh(services.cluster).login_node
        login_node.ssh.run(login_node.admin, ["true"], timeout_s=CONNECT_S)
        return services

    def _login(self) -> Address:
        services = self.slurm.needed()
        user = Address(self.customer or self._last_customer())
        services.cluster.homes.require_own(user)
        answer = over_ssh(services.cluster).login_node.ssh.ask(user, ["true"])
        if answer.status != 0:
            said = answer.stderr.strip() or answer.stdout.strip()
            raise PermanentError(
                f"{user} runs no command: status {answer.status} {said}".rstrip()
            )
        return user

    def _last_customer(self) -> str:
        found = last_customer(self.engine.needed(), self.settings.cluster_name)
        if found is None:
            raise NotTriedError(
                "no customer has had a job in SLURM yet: name one by --customer"
            )
        return found

    def require_rest(self) -> None:
        """Raises NotTriedError where this environment cannot ask slurmrestd; a retry
        does not help.
        """
        self._require("slurm_jwt_key", "slurmrestd_url")

    def require_ssh(self) -> None:
        """Raises NotTriedError where this environment cannot log in; a retry does not
        help.
        """
        key = "slurm_ssh_private_key"
        if self.settings.slurm_ssh_certificates:
            key = "slurm_ssh_ca_key"
        self._require(key, "slurm_ssh_address", "slurm_ssh_admin_user")

    def _require(self, *names: str) -> None:
        for name in names:
            if getattr(self.settings, name) is None:
                raise NotTriedError(
                    f"{name.upper()} is not set here: run it where the slurm worker runs"
                )


def readable_settings(environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Return the settings with all keys that are set, and a line for each variable that
    is malformed; such a variable counts as not set. Raises SettingsError if they fit
    together in no way; a retry does not help.
    """
    lines: list[str] = []
    rest = dict(environment)
    for _ in range(MAX_ROUNDS):
        try:
            return load(*_needs_met(rest), environment=rest), lines
        except SettingsError as error:
            lines += [line for line in error.lines if line not in lines]
            malformed = {
                re.sub("_FILE$", "", line.partition(":")[0]) for line in error.lines
            }
            rest = _without(rest, malformed)
    return load(*_needs_met(rest), environment=rest), lines


def _needs_met(environment: Mapping[str, str]) -> list[Need]:
    """Return the needs for which this environment has all required settings. NOTIFY is
    not tried: its password may be in a file that only a worker reads.
    """
    given = {name for name, value in environment.items() if value}

    def is_given(setting: str) -> bool:
        variable = setting.upper()
        return variable in given or f"{variable}_FILE" in given

    required = required_with(slurm_access(environment))
    needs = list[Need]()
    for need, settings in required.items():
        if need is not Need.NOTIFY and all(map(is_given, settings)):
            needs.append(need)
    return needs


def _without(
    environment: Mapping[str, str], malformed: Collection[str]
) -> dict[str, str]:
    """Leave out the malformed variables. Where one is missing, the variables that
    require it are left out: those that begin alike.
    """
    beginnings = list[str]()
    for name in malformed:
        if name not in environment and f"{name}_FILE" not in environment:
            beginnings.append(f"{name.partition('_')[0]}_")
    rest = dict[str, str]()
    for name, value in environment.items():
        is_malformed = name.removesuffix("_FILE") in malformed
        if not is_malformed and not name.startswith(tuple(beginnings)):
            rest[name] = value
    return rest
