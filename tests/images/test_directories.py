"""Accounts in a real 389ds, resolved for sshd and SLURM by a real SSSD, on a Debian
whose first process is systemd.
"""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ldap3 import SUBTREE, Connection, Server, Tls

from devgrid.cluster.ldap import GROUPS, PEOPLE, SUFFIX
from devgrid.faults.network_proxy import Proxy
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.bootstrap import directory_of, slurm_services
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.errors import DirectoryRejectedError
from supervisor_tasks.jobs.model import Address, Definition, JobId, SlurmId
from supervisor_tasks.site_services.directory import Directory
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.ssh import our_clock_s
from tests.images.machines import RELEASE, Machine

# it makes a Debian, on a machine that may be busy
pytestmark = pytest.mark.timeout(900)

PACKAGES = (
    "389-ds-base",
    "libnss-sss",
    "libpam-sss",
    "munge",
    "openssh-server",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
    "sssd-ldap",
)
SUPERVISOR = f"cn=supervisor,{SUFFIX}"
ADMIN = "slurmadmin"
CUSTOMERS_GROUP = 1600  # its number
FIRST_UID, FIRST_UID_OF_DNA = 500_000, 400_000
INSTANCE = """
[general]
config_version = 2
full_machine_name = localhost
strict_host_checking = False

[slapd]
instance_name = grid
root_password = {password}

[backend-userroot]
suffix = {suffix}
create_suffix_entry = True
"""
# With the group's posixGroup, Linux knows the group too. The supervisor may write below
# people and groups alone.
TREE = f"""
dn: {SUPERVISOR}
objectClass: applicationProcess
objectClass: simpleSecurityObject
cn: supervisor
userPassword: {{password}}

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people
aci: (targetattr="*")(version 3.0; acl "supervisor"; allow (all) userdn="ldap:///{SUPERVISOR}";)
aci: (targetattr="*")(version 3.0; acl "nodes"; allow (read, search, compare) userdn="ldap:///anyone";)

dn: {GROUPS}
objectClass: organizationalUnit
ou: groups
aci: (targetattr="*")(version 3.0; acl "supervisor"; allow (all) userdn="ldap:///{SUPERVISOR}";)
aci: (targetattr="*")(version 3.0; acl "nodes"; allow (read, search, compare) userdn="ldap:///anyone";)

dn: cn=cluster-users,{GROUPS}
objectClass: groupOfNames
objectClass: posixGroup
cn: cluster-users
gidNumber: {CUSTOMERS_GROUP}
"""
AS_ADMINISTRATOR = """
LDAPTLS_CACERT=ca.pem {command} -x -H ldaps://127.0.0.1 -D 'cn=Directory Manager' -w "$(cat password)" -f {file}
"""
MAKE_DIRECTORY = f"""
dscreate from-file instance.inf
dsctl grid tls import-server-key-cert server.pem server.key
dsctl grid tls import-ca ca.pem authority
dsconf grid plugin dna enable
dsconf grid plugin dna config numbers add --type uidNumber --scope {PEOPLE} --filter '(objectClass=posixAccount)' \
    --next-value {FIRST_UID_OF_DNA} --max-value {FIRST_UID - 1} --magic-regen=-1
systemctl restart dirsrv@grid
"""
# libldap compares a certificate with the machine's own name where the URL has
# `localhost`. The timeouts are for a busy machine: SSSD serves only what it remembers
# for a minute after the first one.
SSSD = f"""
[sssd]
services = nss, pam
domains = grid

[domain/grid]
id_provider = ldap
access_provider = permit
ldap_schema = rfc2307bis
ldap_uri = ldaps://127.0.0.1
ldap_search_base = {SUFFIX}
ldap_tls_reqcert = demand
ldap_tls_cacert = {{ca}}
ldap_network_timeout = 60
ldap_opt_timeout = 60
ldap_search_timeout = 60
"""
SSHD = """
PermitUserRC no
PermitUserEnvironment no
AllowTcpForwarding no
AuthorizedKeysFile /etc/ssh/supervisor.pub
"""
SLURM = """
ClusterName=grid
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES
"""
MAKE_LOGIN_NODE = f"""
echo 'session required pam_mkhomedir.so umask=0077' >>/etc/pam.d/sshd
useradd --create-home --shell /bin/sh {ADMIN}
install -d /var/spool/slurmctld /var/spool/slurmd
echo 'SLURMD_OPTIONS="-N node1"' >/etc/default/slurmd
systemctl restart ssh slurmctld slurmd
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A directory, a login node and a SLURM, all on one machine. `ldap_url` is the
    directory's, from this machine.
    """

    machine: Machine
    ldap_url: str
    password: str
    certificates: Certificates
    key: Path
    known_hosts: Path

    def directory(self, **changes: str) -> Directory:
        """The supervisor's access to the directory, by its settings."""
        settings = {
            "ETH_PRIVATE_KEY": "1" * 64,
            "LDAP_URL": self.ldap_url,
            "LDAP_BIND_DN": SUPERVISOR,
            "LDAP_BIND_PASSWORD": self.password,
            "LDAP_CA_PATH": str(self.certificates.ca),
            "LDAP_FIRST_UID_NUMBER": str(FIRST_UID),
        }
        found = directory_of(load(Need.WALLET, environment=settings | changes))
        assert found is not None
        return found

    def new_account(self, **changes: str) -> Address:
        """A customer whose account the supervisor has made."""
        customer = Address("0x" + secrets.token_hex(20))
        self.ensure(customer, **changes)
        return customer

    def ensure(self, customer: Address, **changes: str) -> None:
        with self.directory(**changes).open() as session:
            session.ensure(customer)

    def entries(self, search: str, base: str = SUFFIX) -> list[dict[str, Any]]:
        """What a search brings, by a connection that is none of ours."""
        server = Server(self.ldap_url, tls=Tls(ca_certs_file=str(self.certificates.ca)))
        with Connection(server) as connection:
            found = connection.extend.standard.paged_search(
                base, search, SUBTREE, attributes=["*"], paged_size=50
            )
            return [dict(entry["attributes"]) for entry in found]

    def uid(self, customer: Address) -> int:
        """The number of a customer's account in the directory."""
        (entry,) = self.entries(f"(uid={customer})", PEOPLE)
        return int(entry["uidNumber"])

    def look_through(self, entries: int) -> None:
        """Have 389ds look through so many entries for a caller without a limit of its
        own.
        """
        self.machine.run(f"dsconf grid backend config set --lookthroughlimit {entries}")

    def modify(self, ldif: str) -> None:
        """Change an entry, as the directory's own administrator."""
        self.machine.put(RELEASE / "changes.ldif", ldif)
        self.machine.run(
            AS_ADMINISTRATOR.format(command="ldapmodify", file="changes.ldif")
        )

    def log_in(self, user: str, command: str) -> str:
        """What a command prints that ssh runs as the user."""
        options = [
            "-o",
            "BatchMode=yes",
            "-o",
            f"UserKnownHostsFile={self.known_hosts}",
            "-i",
            str(self.key),
        ]
        argv = ["ssh", "-F", "none", *options, f"{user}@{self.machine.inside}", command]
        return subprocess.run(
            argv, check=True, stdout=subprocess.PIPE, text=True, timeout=deadline(60)
        ).stdout

    def serve_accounts(self, ca: Path) -> None:
        """Have SSSD begin without a memory, with this authority (a path on the
        machine).
        """
        self.machine.put("/etc/sssd/sssd.conf", SSSD.format(ca=ca))
        self.machine.run(
            "systemctl stop sssd && rm -f /var/lib/sss/db/* /var/lib/sss/mc/*\n"
            "chmod 600 /etc/sssd/sssd.conf && systemctl start sssd"
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as after:
        machine = Machine(PACKAGES)
        after.callback(machine.stop)
        machine.put("/etc/hosts", "127.0.0.1 localhost\n")
        password, certificates = (
            secrets.token_urlsafe(16),
            make_certificates(folder / "tls"),
        )
        provide_directory(machine, password, certificates)
        # the certificate is for this machine's own names
        proxy = Proxy.start(f"{machine.inside}:636")
        after.callback(proxy.stop)
        url = f"ldaps://localhost:{proxy.address.rpartition(':')[2]}"
        made = Site(
            machine, url, password, certificates, folder / "key", folder / "known_hosts"
        )
        made.serve_accounts(RELEASE / "ca.pem")
        provide_login_node(made)
        yield made


def provide_directory(
    machine: Machine, password: str, certificates: Certificates
) -> None:
    """Start the machine, and 389ds on it with a certificate of that authority."""
    for file in (certificates.ca, certificates.cert, certificates.key):
        machine.put(RELEASE / file.name, file.read_bytes())
    machine.put(
        RELEASE / "instance.inf", INSTANCE.format(password=password, suffix=SUFFIX)
    )
    machine.put(RELEASE / "tree.ldif", TREE.format(password=password))
    machine.put(RELEASE / "password", password)
    machine.start()
    machine.run(MAKE_DIRECTORY)
    machine.run(AS_ADMINISTRATOR.format(command="ldapadd", file="tree.ldif"))


def provide_login_node(site: Site) -> None:
    """Have the machine let customers in by one key, as the supervisor asks a site to,
    and run SLURM.
    """
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", site.key], check=True
    )
    machine = site.machine
    machine.put("/etc/ssh/supervisor.pub", site.key.with_suffix(".pub").read_bytes())
    machine.put("/etc/ssh/sshd_config.d/supervisor.conf", SSHD)
    machine.put("/etc/slurm/slurm.conf", SLURM)
    machine.run(MAKE_LOGIN_NODE)
    site.known_hosts.write_text(
        f"{machine.inside} {machine.run('cat /etc/ssh/ssh_host_ed25519_key.pub')}"
    )
    wait_until(
        lambda: "idle" in machine.run("sinfo --noheader --format=%T"),
        "the node",
        60.0,
        0.2,
    )


NUMBERS = {
    "by the supervisor": (str(FIRST_UID), FIRST_UID),
    "by DNA": ("", FIRST_UID_OF_DNA),
}


@pytest.mark.parametrize(("setting", "first"), NUMBERS.values(), ids=NUMBERS)
def test_ensure__389ds__makes_account_group_and_membership_once(
    site: Site, setting: str, first: int
) -> None:
    one = site.new_account(LDAP_FIRST_UID_NUMBER=setting)
    two = site.new_account(LDAP_FIRST_UID_NUMBER=setting)
    made = site.entries(f"(|(uid={one})(cn={one}))")
    account, group = sorted(made, key=lambda entry: "uid" not in entry)
    assert {"nsPerson", "nsOrgPerson", "nsAccount", "posixAccount"} <= set(
        account["objectClass"]
    )
    assert account["homeDirectory"] == f"/home/{one}"
    assert account["uidNumber"] == account["gidNumber"] == group["gidNumber"]
    assert first <= account["uidNumber"] < site.uid(two) < first + 100
    site.ensure(one, LDAP_FIRST_UID_NUMBER=setting)
    assert site.entries(f"(|(uid={one})(cn={one}))") == made
    (users,) = site.entries("(cn=cluster-users)", GROUPS)
    assert users["member"].count(f"uid={one},{PEOPLE}") == 1


def test_ensure__more_accounts_than_389ds_lists__is_refused_unless_unlimited(
    site: Site,
) -> None:
    """389ds looks through 5,000 entries for a user, unless the user's own entry says
    otherwise.
    """
    earlier = [site.new_account() for _ in range(2)]
    site.look_through(entries=1)
    try:
        with pytest.raises(
            DirectoryRejectedError, match=r"uidNumber .*: adminLimitExceeded \(11\)"
        ):
            site.new_account()
        site.modify(
            f"dn: {SUPERVISOR}\nchangetype: modify\nadd: nsLookThroughLimit\nnsLookThroughLimit: -1\n"
        )
        another = site.new_account()
    finally:
        site.look_through(entries=5000)
    assert site.uid(another) > max(site.uid(one) for one in earlier)


def test_ensure__certificate_of_another_authority__is_refused(
    site: Site, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other")
    with pytest.raises(DirectoryRejectedError, match="certificate"):
        site.new_account(LDAP_CA_PATH=str(other.ca))


def test_sssd__customers_account__is_resolved_with_own_group_and_membership(
    site: Site,
) -> None:
    customer = site.new_account()
    number, run = site.uid(customer), site.machine.run
    assert (
        run(f"getent passwd {customer}")
        == f"{customer}:*:{number}:{number}:{customer}:/home/{customer}:/bin/sh\n"
    )
    assert run(f"getent group {customer}") == f"{customer}:*:{number}:\n"
    assert customer in run("getent group cluster-users").strip().split(":")[3].split(
        ","
    )
    assert run(f"id --groups {customer}").split() == [str(number), str(CUSTOMERS_GROUP)]


def test_sssd__certificate_of_another_authority__resolves_nothing(
    site: Site, tmp_path: Path
) -> None:
    customer = site.new_account()
    other = RELEASE / "other.pem"
    site.machine.put(other, make_certificates(tmp_path / "other").ca.read_bytes())
    try:
        site.serve_accounts(other)
        assert not site.machine.succeeds(f"getent passwd {customer}")
    finally:
        site.serve_accounts(RELEASE / "ca.pem")
    assert site.machine.succeeds(f"getent passwd {customer}")


def test_sshd__customers_first_login__makes_his_home_and_runs_as_him(
    site: Site,
) -> None:
    customer = site.new_account()
    assert not site.machine.succeeds(f"test -e /home/{customer}")
    shown = site.log_in(
        customer, "id -u; id -G; pwd; stat --format='%a %u %g' ."
    ).splitlines()
    number = site.uid(customer)
    assert shown == [
        f"{number}",
        f"{number} {CUSTOMERS_GROUP}",
        f"/home/{customer}",
        f"700 {number} {number}",
    ]


def test_submission__customer_without_a_home__gets_it_and_the_job_runs_as_him(
    site: Site,
) -> None:
    """As the supervisor does it: a look at the home by the admin user, then sbatch as
    the customer.
    """
    customer, job = site.new_account(), JobId("0x" + secrets.token_hex(32))
    settings = {
        "PUBLIC_ADDRESS": "supervisor.example.org:3000",
        "SLURM_SSH_ADDRESS": f"{site.machine.inside}:22",
        "SLURM_SSH_ADMIN_USER": ADMIN,
        "SLURM_SSH_PRIVATE_KEY": site.key.read_text(),
        "SLURM_SSH_KNOWN_HOSTS": str(site.known_hosts),
        "SLURM_PARTITION": "main",
    }
    cluster = slurm_services(load(Need.SLURM, environment=settings)).cluster
    answers = list[SlurmId | Exception]()
    try:
        cluster.homes.require_own(customer)
        size = Definition(
            gpus=0, mem_per_cpu_mb=10, cpus_per_task=1, ntasks=1, batch_location_hash=""
        )
        request = Request(
            definition=size,
            limit_min=1,
            script="#!/bin/sh\nid -u; id -G; pwd\n",
            number=1,
        )
        clock = cluster.clock.of(customer)
        cluster.submissions.submit_batch(
            customer,
            [(job, request)],
            clock,
            our_clock_s(),
            lambda _, answer: answers.append(answer),
        )
    finally:
        cluster.close()
    (slurm_id,) = answers
    assert isinstance(slurm_id, int), slurm_id
    ended = f"scontrol show job {slurm_id} | grep -q JobState=COMPLETED"
    wait_until(lambda: site.machine.succeeds(ended), "the job to end", 60.0, 0.2)
    number, home = site.uid(customer), f"/home/{customer}"
    assert (
        site.machine.run(f"stat --format='%a %u %g' {home}")
        == f"700 {number} {number}\n"
    )
    printed = site.machine.run(f"cat {home}/{job}.log").splitlines()
    assert printed == [f"{number}", f"{number} {CUSTOMERS_GROUP}", home]
