"""A Kerberos realm for tests: MIT's KDC on loopback, its principals and their keytabs.

The machine's own Kerberos is neither read nor changed: all files are in the given directory, to
which `environment` directs libraries and commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from tests.support.kafka.kafka_process import free_ports, process_leash
from tests.support.kafka.kafka_unavailable import KerberosUnavailableError
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

REALM = "SINK.TEST"
_SECONDS = 120
#: Debian installs the commands for root outside of the usual PATH.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"))
_ADVICE = " (scripts/find_kerberos.sh .venv, as root)"
_COMMANDS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")

_KRB5_CONF = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
_KDC_CONF = """\
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {directory}/principal
    key_stash_file = {directory}/stash
  }}
"""


class Kdc:
    """A context manager that runs a KDC."""

    def __init__(self, directory: Path) -> None:
        """Write the realm's files; raise KerberosUnavailableError if commands are missing."""
        missing = [name for name in _COMMANDS if shutil.which(name, path=_PATH) is None]
        if missing:
            raise KerberosUnavailableError(f"{', '.join(missing)}: not installed{_ADVICE}")
        if find_spec("gssapi") is None:
            raise KerberosUnavailableError(f"the Python package gssapi: not installed{_ADVICE}")
        self._directory = directory
        self._port = free_ports(1)[0]
        self.krb5_conf = self._write("krb5.conf", _KRB5_CONF)
        kdc_conf = self._write("kdc.conf", _KDC_CONF)
        #: Variables that direct a program to this realm, and away from the machine's own tickets.
        self.environment = {
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(kdc_conf),
            "KRB5CCNAME": f"FILE:{directory}/no-tickets",
            "KRB5_CLIENT_KTNAME": f"FILE:{directory}/no-keys",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _write(self, name: str, template: str) -> Path:
        path = self._directory / name
        path.write_text(template.format(realm=REALM, port=self._port, directory=self._directory))
        return path

    def _run(self, *command: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, **self.environment, "PATH": _PATH},
        )
        # kadmin.local reports a failed query only in its output.
        said = done.stdout + done.stderr
        if done.returncode != 0 or "kadmin.local: " in done.stderr or "while " in done.stderr:
            raise RuntimeError(f"{' '.join(command)}: {said}")
        return said

    def _admin(self, query: str) -> str:
        return self._run("kadmin.local", "-r", REALM, "-q", query)

    def __enter__(self) -> Self:
        """Create the database, start the KDC, and wait until it answers."""
        self._run("kdb5_util", "-r", REALM, "create", "-s", "-P", "of-the-tests-own-realm")
        keytab = self.add("ready")
        self.start()

        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"krb5kdc ended: {self.log.read_text()}")
            try:
                self.kinit("ready", keytab)
            except RuntimeError:
                return False
            return True

        wait_until(answers, seconds=_SECONDS, what="the KDC")
        return self

    @property
    def log(self) -> Path:
        """The KDC's log file."""
        return self._directory / "kdc.log"

    def start(self) -> None:
        """Start or restart the KDC."""
        command = shutil.which("krb5kdc", path=_PATH)
        assert command is not None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [command, "-n", "-r", REALM],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        process_leash().hold(self._process.pid, self._directory)

    def stop(self) -> None:
        """Kill the KDC; its database is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_SECONDS)
            process_leash().release(self._process.pid)
            self._process = None

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the KDC."""
        self.stop()

    def add(self, principal: str, *, seconds: int | None = None) -> Path:
        """Add a principal with a maximum ticket lifetime in seconds; return its keytab."""
        life = "" if seconds is None else f"-maxlife {seconds}s "
        self._admin(f"addprinc {life}-randkey {principal}")
        keytab = self._directory / f"{principal.replace('/', '-')}.keytab"
        self._admin(f"ktadd -k {keytab} {principal}")
        return keytab

    def change_key(self, principal: str) -> None:
        """Change a principal's key, which invalidates its existing keytabs."""
        self._admin(f"cpw -randkey {principal}")

    def kinit(self, principal: str, keytab: Path, *options: str) -> Path:
        """Create a ticket cache as a user does; return its file."""
        cache = self._directory / f"{principal}.cache"
        self._run("kinit", "-k", "-t", str(keytab), "-c", f"FILE:{cache}", *options, principal)
        return cache


def module(**options: object) -> str:
    """Return a login module in the form of Java's client."""
    written = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"com.sun.security.auth.module.Krb5LoginModule required{written};"


def keytab_module(principal: str, keytab: Path, **options: object) -> str:
    """Return the login module of a principal with a keytab."""
    return module(useKeyTab="true", keyTab=keytab, principal=f"{principal}@{REALM}", **options)
