"""What options may read, import and contact: allow-lists in environment variables, and files.

Options can make this process read files and environment variables (references, key stores, keytabs,
tokens), import code (plug-ins) and send requests (token endpoints, Schema Registries). A service
that accepts options from its users can restrict this with these variables, as system properties
restrict Java's client (CVE-2024-31141, CVE-2025-27817). They must be set wherever options are read:
on the driver and on the executors.

Each variable holds a comma-separated list. A variable that is not set restricts nothing; one that
is empty or `none` allows nothing.

Of the files that options name (secrets, key stores, keytabs, tokens, checkpoints, reports), only
regular ones of at most 1 MiB are read: a device or a pipe could deliver data without end, or none,
and no secret or store is larger. A name may lead elsewhere once it has been checked: somebody may
exchange a link on its way. So the file that was opened is checked, too. Where the name is used
again, by a library or to write, `pinned_file` and `pinned_target` return a path that leads to what
was opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX: Final = "SPARK_KAFKA_SINK_ALLOWED_"
#: Providers of references: `env`, `file`, `dir`, or the names of Kafka's classes for them
#: (org.apache.kafka.automatic.config.providers).
PROVIDERS: Final = f"{_PREFIX}PROVIDERS"
#: A regular expression, not a list, that the whole name of an environment variable must match
#: (`allowlist.pattern` of Kafka's EnvVarConfigProvider).
VARIABLES: Final = f"{_PREFIX}VARIABLES"
#: Files, and directories with everything in them, for references, key stores, keytabs, tokens and
#: reports (`allowed.paths` of Kafka's providers, org.apache.kafka.sasl.oauthbearer.allowed.files).
PATHS: Final = f"{_PREFIX}PATHS"
#: Token endpoints, Schema Registries without credentials in their URLs, and proxies for these; an
#: exact match (org.apache.kafka.sasl.oauthbearer.allowed.urls).
URLS: Final = f"{_PREFIX}URLS"
#: Login modules, by Java's names (org.apache.kafka.allowed.login.modules).
LOGIN_MODULES: Final = f"{_PREFIX}LOGIN_MODULES"
#: Plug-ins, as `package.module:attribute`; an exact match.
PLUGINS: Final = f"{_PREFIX}PLUGINS"

#: The directory in which each descriptor of this process is a link to its file. Only Linux has it:
#: elsewhere a list of paths allows none, since what is opened could not be checked.
_DESCRIPTORS: Final = "/proc/self/fd"
_NOTHING: Final = "none"
_KAFKAS_PROVIDERS: Final[Mapping[str, str]] = {
    f"org.apache.kafka.common.config.provider.{java}ConfigProvider": name
    for java, name in {"EnvVar": "env", "File": "file", "Directory": "dir"}.items()
}
MAX_BYTES: Final = 1 << 20
#: Opening a pipe must not wait for a writer, and a terminal must not become the controlling one.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class NotAllowedError(ValueError):
    """An option names something outside its allow-list; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class AllowLists:
    """The allow-lists of one environment; each check raises NotAllowedError if it fails."""

    environment: Mapping[str, str]

    def check_provider(self, name: str) -> None:
        """Check the provider of a reference."""
        allowed = self._entries(PROVIDERS)
        if allowed is not None:
            self._check(name, PROVIDERS, [_KAFKAS_PROVIDERS.get(entry, entry) for entry in allowed])

    def check_variable(self, name: str) -> None:
        """Check the environment variable that a reference names."""
        pattern = self.environment.get(VARIABLES)
        if pattern is None:
            return
        if pattern.strip() == _NOTHING:
            pattern = ""
        try:
            matches = re.fullmatch(pattern, name) is not None
        except re.error:
            raise NotAllowedError(f"{VARIABLES} is not a regular expression") from None
        if not matches:
            raise NotAllowedError(f"{VARIABLES} does not allow it in this process")

    @property
    def restricts_paths(self) -> bool:
        """Whether there is a list of paths."""
        return PATHS in self.environment

    def check_path(self, path: str) -> None:
        """Check a file after following symbolic links; raise ValueError for a path with a NUL.

        The name may lead elsewhere when it is next used: see `check_opened`.
        """
        allowed = self._entries(PATHS)
        if allowed is None:
            return
        if not Path(_DESCRIPTORS).is_dir():
            raise NotAllowedError(f"{PATHS} needs {_DESCRIPTORS}, which this system does not have")
        if not all(Path(entry).is_absolute() for entry in allowed):
            raise NotAllowedError(f"{PATHS} must list absolute paths")
        real_path = Path(os.path.realpath(path))
        if not any(real_path.is_relative_to(os.path.realpath(entry)) for entry in allowed):
            raise NotAllowedError(f"{PATHS} does not allow it in this process")

    def check_opened(self, descriptor: int, name: str = "") -> None:
        """Check a file that is open, or a name in a directory that is open, wherever it is."""
        if self.restricts_paths:
            self.check_path(str(Path(_DESCRIPTORS, str(descriptor)).readlink() / name))

    def check_ticket_cache(self, name: str) -> None:
        """Check a Kerberos ticket cache, which must be a file if there is a list of paths."""
        path = name.removeprefix("FILE:")
        if self._entries(PATHS) is not None and not Path(path).is_absolute():
            raise NotAllowedError(f"{PATHS} allows files by their absolute paths only")
        self.check_path(path)

    def check_url(self, url: str) -> None:
        """Check a token endpoint, a registry, or its proxy."""
        self._check(url, URLS, self._entries(URLS))

    def check_login_module(self, java_class: str) -> None:
        """Check the Java login module that corresponds to a login."""
        self._check(java_class, LOGIN_MODULES, self._entries(LOGIN_MODULES))

    def check_plugin(self, import_path: str) -> None:
        """Check a plug-in before it is imported."""
        self._check(import_path, PLUGINS, self._entries(PLUGINS))

    def _entries(self, variable: str) -> list[str] | None:
        text = self.environment.get(variable)
        if text is None or text.strip() == _NOTHING:
            return None if text is None else []
        return [entry for item in text.split(",") if (entry := item.strip())]

    @staticmethod
    def _check(value: str, variable: str, allowed: list[str] | None) -> None:
        if allowed is not None and value not in allowed:
            raise NotAllowedError(f"{variable} does not allow it in this process")


def allow_lists() -> AllowLists:
    """Return the allow-lists of this process."""
    return AllowLists(os.environ)


def read_named_file(path: Path | str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises OSError, whose `strerror` gives the reason, if the file cannot or must not be read.
    """
    with _opened(path) as descriptor:
        return _read(descriptor, max_bytes)


@contextmanager
def pinned_file(path: Path | str) -> Iterator[str]:
    """Yield a path to a file for a library that opens it by name. Raises OSError.

    If files are restricted, the path leads to the file that was checked.
    """
    if not allow_lists().restricts_paths:
        yield str(path)
        return
    with _opened(path) as descriptor:
        yield f"{_DESCRIPTORS}/{descriptor}"


@contextmanager
def pinned_target(path: Path) -> Iterator[Path]:
    """Yield a path to a file that is to be written. Raises OSError.

    If files are restricted, the path leads to the directory that was checked, so do not follow a
    link in place of the file itself.
    """
    lists = allow_lists()
    if not lists.restricts_paths:
        yield path
        return
    try:
        # By its name first, as in `_opened`.
        lists.check_path(str(path))
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lists.check_opened(descriptor, path.name)
        yield Path(_DESCRIPTORS, str(descriptor), path.name)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except OSError as error:
        if str(error.filename).startswith(_DESCRIPTORS):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path | str) -> Iterator[int]:
    """Open a file for reading that the environment allows."""
    lists = allow_lists()
    try:
        # By its name first: who may not read a file need not know whether it exists.
        lists.check_path(str(path))
        descriptor = os.open(path, _FLAGS)
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    except ValueError:
        raise OSError(errno.EINVAL, "it is not a valid path") from None
    try:
        lists.check_opened(descriptor)
        yield descriptor
    except NotAllowedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read to the end, ignoring the size that the system reports: files in /proc have none."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    content = bytearray()
    while chunk := os.read(descriptor, max_bytes + 1 - len(content)):
        content += chunk
        if len(content) > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return bytes(content)
