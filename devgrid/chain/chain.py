"""The grid's chain, with the accounts that its programs share and the calls of
customers, providers and administrators.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from eth_account import Account as Signer

from devgrid.chain.actors import Administrators, Customers, Providers
from devgrid.chain.client import ChainClient
from devgrid.chain.model import Account, ChainAddresses, ChainNode, ChainPrices
from devgrid.state_files import StateFileError, state_in

CHAIN_FILE = "chain.json"


class Chain(ChainClient):
    """A running chain: `deployment.start_chain` starts one, `load` finds the one that
    another program started.
    """

    def __init__(
        self, folder: Path, rpc_url: str, chain_id: int, addresses: ChainAddresses
    ) -> None:
        super().__init__(folder, rpc_url, chain_id, addresses)
        self.customers = Customers(self)
        self.providers = Providers(self)
        self.admin = Administrators(self, self.account)

    @classmethod
    def load(cls, folder: Path) -> "Chain":
        """The chain that was started in that folder. Raises StateFileError when there
        was none.
        """
        with state_in(folder / CHAIN_FILE) as state:
            return cls(
                folder,
                state["rpc_url"],
                state["chain_id"],
                ChainAddresses(**state["addresses"]),
            )

    def new_account(self, ether: int = 100, role: str | None = None) -> Account:
        """A new account with ether for gas; one with a role is remembered in chain.json
        (see `account`).
        """
        account = random_account()
        self.set_balance(account, ether)
        if role is not None:
            self.save_accounts({**self._accounts(), role: account})
        return account

    def account(self, role: str) -> Account:
        """An account by its role. Raises StateFileError when no account has it."""
        accounts = self._accounts()
        if role not in accounts:
            known = ", ".join(sorted(accounts)) or "none"
            raise StateFileError(
                self.folder / CHAIN_FILE,
                f"no account with the role {role!r} (known: {known})",
            )
        return accounts[role]

    def register_provider(
        self,
        account: Account,
        nodes: Sequence[ChainNode],
        prices: ChainPrices,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Register a provider and approve it."""
        self.providers.register(account, nodes, prices, labels)
        self.admin.approve_provider(account.address)

    def save_accounts(self, accounts: Mapping[str, Account]) -> None:
        """Write chain.json with these accounts by role; only its owner may read it."""
        text = json.dumps(
            {
                "rpc_url": self.rpc_url,
                "ws_url": self.ws_url,
                "chain_id": self.chain_id,
                "addresses": asdict(self.addresses),
                "accounts": {
                    role: asdict(account) for role, account in accounts.items()
                },
            },
            indent=1,
        )
        new = self.folder / f"{CHAIN_FILE}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as out:
            out.write(text)
        new.replace(self.folder / CHAIN_FILE)

    def _accounts(self) -> dict[str, Account]:
        with state_in(self.folder / CHAIN_FILE) as state:
            return {
                role: Account(**account) for role, account in state["accounts"].items()
            }


def random_account() -> Account:
    """A new account without ether."""
    signer = Signer.create()
    return Account(signer.address.lower(), "0x" + bytes(signer.key).hex())
