"""A private slapd: the directory in which a site keeps its users."""

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devgrid.ports import free_port
from devgrid.processes import Processes, StartError, answers
from devgrid.tls import Certificates

SUFFIX = "dc=hpc,dc=deepsquare,dc=run"
PEOPLE = f"ou=people,{SUFFIX}"
GROUPS = f"ou=groups,{SUFFIX}"
GROUP = f"cn=cluster-users,{GROUPS}"
ADMIN = f"cn=admin,{SUFFIX}"
FIRST_UID = 300_000
SCHEMAS = ("core", "cosine", "inetorgperson", "nis")
TREE = f"""dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
dc: hpc
o: devgrid

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people

dn: {GROUPS}
objectClass: organizationalUnit
ou: groups

dn: {GROUP}
objectClass: groupOfNames
cn: cluster-users
member: {ADMIN}
"""


@dataclass(frozen=True, slots=True)
class Ldap:
    """A running directory, over TLS only."""

    processes: Processes
    certificates: Certificates
    port: int
    password: str

    @classmethod
    def start(cls, processes: Processes, certificates: Certificates) -> "Ldap":
        """Start slapd with an empty tree: people, and the group of the users of the
        cluster.
        """
        ldap = cls(processes, certificates, free_port(), secrets.token_urlsafe(16))
        folder = processes.folder / "ldap"
        (folder / "data").mkdir(parents=True)
        conf = folder / "slapd.conf"
        conf.touch(mode=0o600)
        conf.write_text(ldap._config(folder))
        (folder / "tree.ldif").write_text(TREE)
        argv = ["/usr/sbin/slapadd", "-f", str(conf), "-l", str(folder / "tree.ldif")]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise StartError(f"slapadd: {done.stderr}")
        ldap.start_server()
        return ldap

    @property
    def url(self) -> str:
        """Its URL."""
        return f"ldaps://localhost:{self.port}"

    def start_server(self) -> None:
        """Start slapd with the data that it has."""
        conf = self.processes.folder / "ldap" / "slapd.conf"
        argv = [
            "/usr/sbin/slapd",
            "-d",
            "0",
            "-f",
            str(conf),
            "-h",
            f"ldaps://127.0.0.1:{self.port}",
        ]
        self.processes.start("slapd", argv, ready=lambda: answers(self.port))

    def settings(self) -> dict[str, str]:
        """The supervisor's settings for this directory."""
        return {
            "LDAP_URL": self.url,
            "LDAP_BIND_DN": ADMIN,
            "LDAP_BIND_PASSWORD": self.password,
            "LDAP_CA_PATH": str(self.certificates.ca),
            "LDAP_OBJECT_CLASSES": "inetOrgPerson,posixAccount",
            "LDAP_FIRST_UID_NUMBER": str(FIRST_UID),
        }

    def _config(self, folder: Path) -> str:
        lines = [
            *(f"include /etc/ldap/schema/{name}.schema" for name in SCHEMAS),
            f"pidfile {folder}/slapd.pid",
            "modulepath /usr/lib/ldap",
            "moduleload back_mdb",
            f"TLSCACertificateFile {self.certificates.ca}",
            f"TLSCertificateFile {self.certificates.cert}",
            f"TLSCertificateKeyFile {self.certificates.key}",
            # small, so that clients must request pages; 389ds has 2000 by default
            "sizelimit 100",
            "database mdb",
            f'suffix "{SUFFIX}"',
            f'rootdn "{ADMIN}"',
            f"rootpw {self.password}",
            f"directory {folder}/data",
            "maxsize 67108864",
            "index objectClass,uid,cn,uidNumber,gidNumber,member eq",
        ]
        return "\n".join([*lines, ""])
