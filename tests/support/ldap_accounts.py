"""Customers' accounts in a real slapd, and what stands in it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldap3 import SUBTREE, Connection, Server, Tls

from devgrid.cluster.ldap import ADMIN, FIRST_UID, GROUP, GROUPS, PEOPLE, Ldap
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.site_services.directory import AccountForm, Directory, Member

FORM = AccountForm(
    people_dn=PEOPLE,
    group_dn=GROUP,
    member_attribute=Member.DN,
    object_classes=("inetOrgPerson", "posixAccount"),
    gid_number=None,
    own_groups_dn=GROUPS,
    own_group_classes=("posixGroup",),
    home_directory="/home/{address}",
    login_shell="/bin/sh",
    attributes={},
    first_uid_number=FIRST_UID,
)


@contextmanager
def running_slapd() -> Iterator[Ldap]:
    """A slapd that ends with the context."""
    with private_processes() as processes:
        yield Ldap.start(processes, make_certificates(processes.folder / "tls"))


def directory_of(ldap: Ldap, **changes: Any) -> Directory:
    """The directory as a site that has FORM sets it, but for these changes."""
    known = Directory(
        url=ldap.url,
        bind_dn=ADMIN,
        bind_password=ldap.password,
        ca_path=ldap.certificates.ca,
        verified=True,
        form=FORM,
    )
    return replace(known, **changes)


def customer() -> Address:
    """An address that no test had before."""
    return Address("0x" + secrets.token_hex(20))


def found(
    url: str, password: str, ca: Path, base: str, search: str
) -> list[dict[str, Any]]:
    """What a search brings, by a connection that is none of ours."""
    server = Server(url, tls=Tls(ca_certs_file=str(ca)))
    with Connection(server, ADMIN, password) as connection:
        entries = connection.extend.standard.paged_search(
            base, search, SUBTREE, attributes=["*"], paged_size=50
        )
        return [dict(entry["attributes"]) for entry in entries]


def entries(ldap: Ldap, search: str, base: str = PEOPLE) -> list[dict[str, Any]]:
    """The entries below a base that a search finds."""
    return found(ldap.url, ldap.password, ldap.certificates.ca, base, search)
