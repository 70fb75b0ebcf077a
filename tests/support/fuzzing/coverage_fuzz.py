"""Coverage-guided fuzzing with atheris: inputs that reach new code are kept and mutated further.

libFuzzer takes over its process, so it runs in a child process. An input on which it stops is tried
again in this process, where it becomes a `Finding`. The first byte of an input selects the target,
so that all targets share one corpus. atheris has wheels only for Linux on x86-64; on other
platforms, and with Python versions that it does not support yet, only `fuzz` is available.
"""

from __future__ import annotations

import platform
import random
import re
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.fuzzing.fuzz import Finding

ROOT = Path(__file__).parents[3]
#: The module with the targets: its `TARGETS` maps names to classes.
TARGETS_MODULE = "tests.support.fuzzing.fuzz"
#: The code that reads from the network. atheris instruments the whole packages of these modules.
_INSTRUMENTED = (
    "spark_kafka_sink.protocol",
    "spark_kafka_sink.security",
    "spark_kafka_sink.network",
    "spark_kafka_sink.record.decode",
    "spark_kafka_sink.record.record_batch",
    "spark_kafka_sink.record.compression",
    "spark_kafka_sink.record.default_record",
    "spark_kafka_sink.record.arrow",
    "spark_kafka_sink.formats.avro.interpreter",
    "spark_kafka_sink.formats.json.interpreter",
    "spark_kafka_sink.registry.client",
    "spark_kafka_sink.devbroker.registry.rest_api",
    "spark_kafka_sink.devbroker.net.sasl_authenticator",
    "spark_kafka_sink.devbroker.net.sasl_servers",
    "spark_kafka_sink.devbroker.handlers",
)
#: Imported without instrumentation: numba compiles the kernels from their bytecode.
_KERNELS = (
    "spark_kafka_sink.record.kernel.decode_kernel",
    "spark_kafka_sink.formats.avro.decode_kernel",
    "spark_kafka_sink.formats.avro.encode_kernel",
    "spark_kafka_sink.formats.columnar.output_kernel",
    "spark_kafka_sink.formats.columnar.source_kernel",
    "spark_kafka_sink.formats.json.decode_kernel",
    "spark_kafka_sink.formats.json.encode_kernel",
)
_SEEDS_PER_TARGET = 100
_LONGEST_INPUT = 4096
#: The timeout for one input, in seconds. libFuzzer's own memory limit is disabled: it checks the
#: peak that `getrusage` reports, which a child process inherits from its parent.
_LIMITS = ("-timeout=20", "-rss_limit_mb=0")
_DATA_BYTES = 3000 << 20
#: Time for the child process to start and for a last input that takes its full timeout.
_GRACE_SECONDS = 120


@dataclass
class CoverageReport:
    """The outcome of a run."""

    #: Number of inputs tried, and of edges of the code that they covered.
    inputs: int
    edges: int
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a summary in one line."""
        return f"{self.inputs} inputs, {self.edges} edges; {len(self.findings)} findings"


def is_available() -> bool:
    """Return whether there is an atheris for this Python and machine (see pyproject.toml)."""
    machine = (sys.platform, platform.machine())
    return machine == ("linux", "x86_64") and sys.version_info < (3, 14)


def coverage_fuzz(
    *, seed: int, seconds: int, directory: Path, module: str = TARGETS_MODULE
) -> CoverageReport:
    """Fuzz a module's targets for a number of seconds; stop at the first finding.

    The corpus and the finding are written to `directory`. Raises RuntimeError if the fuzzer itself
    fails.
    """
    command = [sys.executable, "-m", __spec__.name, str(directory), str(seconds), str(seed), module]
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds + _GRACE_SECONDS,
        check=False,
        cwd=ROOT,
    )
    said = done.stdout.decode(errors="replace")
    stopped = sorted((directory / "stopped").iterdir())
    findings = [_finding(path, module, said) for path in stopped]
    inputs = re.findall(r"stat::number_of_executed_units: (\d+)", said)
    edges = re.findall(r"\bcov: (\d+)", said)
    if not inputs or (not findings and (done.returncode != 0 or not edges)):
        raise RuntimeError(f"the fuzzer exited with code {done.returncode}:\n{said[-4000:]}")
    return CoverageReport(int(inputs[-1]), int(edges[-1]) if edges else 0, findings)


def _finding(path: Path, module: str, said: str) -> Finding:
    """Try an input on which the fuzzer stopped; its file name says whether it timed out.

    What an input does only after others, or within the fuzzer's memory, is known from what the
    fuzzer said.
    """
    # Imported here, so that the fuzzer's process imports it after instrumentation is set up.
    from tests.support.fuzzing.fuzz import Finding, try_input  # noqa: PLC0415

    targets = list(import_module(module).TARGETS.values())
    target, data = _chosen(targets, path.read_bytes())
    kind = path.name.partition("-")[0]
    if kind != "crash":
        return Finding(target.name, data, f"the fuzzer's time limit ({kind})")
    reported = re.findall(r"^RuntimeError: (.*)", said, re.MULTILINE) or [said[-2000:]]
    reason = f"not reproducible alone, in the fuzzer: {reported[-1]}"
    return try_input(target(), data) or Finding(target.name, data, reason)


def _chosen(targets: Sequence[Any], data: bytes) -> tuple[Any, bytes]:
    return targets[(data[0] if data else 0) % len(targets)], data[1:]


def _write_seeds(directory: Path, targets: Sequence[Any], seed: int) -> None:
    random_ = random.Random(seed)
    for index, target in enumerate(targets):
        for number in range(_SEEDS_PER_TARGET):
            data = bytes((index,)) + target.make(random_)
            (directory / f"{target.name}-{number}").write_bytes(data)


def _run(directory: Path, seconds: str, seed: str, module: str) -> None:
    """Run the fuzzer in this process; does not return."""
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    import atheris  # noqa: PLC0415 - not available everywhere

    for kernels in _KERNELS:
        import_module(kernels)
    with atheris.instrument_imports(include=[*_INSTRUMENTED, module]):
        targets = [make() for make in import_module(module).TARGETS.values()]
        try_input = import_module("tests.support.fuzzing.fuzz").try_input
    corpus, stopped = directory / "corpus", directory / "stopped"
    for path in (corpus, stopped):
        path.mkdir(parents=True)
    _write_seeds(corpus, targets, int(seed))

    def take(data: bytes) -> None:
        target, chosen = _chosen(targets, data)
        finding = try_input(target, chosen)
        if finding is not None:
            raise RuntimeError(str(finding))

    options = [
        *("-print_final_stats=1", f"-max_total_time={seconds}", f"-seed={seed}", *_LIMITS),
        *(f"-max_len={_LONGEST_INPUT}", f"-artifact_prefix={stopped}/", str(corpus)),
    ]
    atheris.Setup([__spec__.name, *options], take)
    atheris.Fuzz()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), *sys.argv[2:])
