"""A soak test: writers run for minutes while the network and the cluster fail by plan.

Every writer must deliver every row, once and in order, without an error: no fault of the plan lasts
as long as delivery.timeout.ms. One error is allowed: a broker that was restarted, or has become the
leader since, may not recognize batches that it has but never acknowledged
(`test_a_broker_that_forgot_batches_gets_no_batch_twice`). This error ends the writer; even
then, no acknowledged row may be missing, and no row may be duplicated. Any other error ends the
soak at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import DeliveryError
from tests.support.kafka.leadership import move_leaders
from tests.support.kafka.proxied_kafka import start_proxied_kafka
from tests.support.record.numbered_rows import RowCheck
from tests.support.soaking.soak_plan import Event, Kind, Plan, each_kind_once, make_plan
from tests.support.soaking.soak_writers import make_writers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.kafka.proxied_kafka import ProxiedKafka
    from tests.support.soaking.steady_writer import Writer

#: The proxies outlive the writing by the time that finishing and checking may take.
_AFTERWARDS_SECONDS = 900
_POLL_SECONDS = 0.2
#: The pace of the writers in a plan that ends with its last event, however many rows they write.
_COMPLETE_PACE = 0.25
#: How long a fault may take until it strikes, in a plan that must be complete.
_STRIKE_SECONDS = 120
#: How long an event of the cluster lane may take until the cluster has recovered.
_JOIN_SECONDS = 300


@dataclass(slots=True)
class SoakReport:
    """What happened in a run, and what went wrong."""

    seed: int
    seconds: float
    rows: dict[str, int] = field(default_factory=dict)
    strikes: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    #: Writers that ended with the allowed error, and lost no acknowledged row.
    clear_errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a summary of a few lines, beginning with the seed."""
        lines = [f"soak of {self.seconds:.0f} s with seed {self.seed}"]
        lines += [f"  {name}: {rows:,} rows" for name, rows in self.rows.items()]
        for name, counts in (("faults", self.strikes), ("cluster", self.events)):
            said = ", ".join(f"{count} x {what}" for what, count in sorted(counts.items()))
            lines.append(f"  {name}: {said or 'nothing'}")
        lines += [f"  expected error: {error}" for error in self.clear_errors]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)


def run_soak(
    *,
    seed: int,
    seconds: float,
    version: str,
    nodes: int = 3,
    say: Callable[[str], None] = print,
) -> SoakReport:
    """Run a soak of this many seconds, and check it. Raises KafkaUnavailableError."""
    plan = make_plan(seed=seed, seconds=seconds, nodes=nodes)
    return _run(plan, SoakReport(seed, seconds), version, nodes, say)


def run_each_fault_once(
    *, version: str, nodes: int = 3, say: Callable[[str], None] = print
) -> SoakReport:
    """Run a soak in which each kind of event happens, and check it; see `each_kind_once`.

    Raises KafkaUnavailableError.
    """
    return _run(each_kind_once(nodes=nodes), SoakReport(0, 0), version, nodes, say)


def _run(
    plan: Plan, report: SoakReport, version: str, nodes: int, say: Callable[[str], None]
) -> SoakReport:
    lifetime = report.seconds + _AFTERWARDS_SECONDS
    with start_proxied_kafka(
        version, nodes=nodes, seed=report.seed, lifetime_seconds=lifetime
    ) as kafka:
        _Soak(kafka, plan, report, say).run()
    return report


def _is_clear(error: BaseException) -> bool:
    return isinstance(error, DeliveryError) and "OUT_OF_ORDER_SEQUENCE_NUMBER" in str(error)


class _Soak:
    """One run."""

    def __init__(
        self, kafka: ProxiedKafka, plan: Plan, report: SoakReport, say: Callable[[str], None]
    ) -> None:
        self._kafka = kafka
        self._plan = plan
        self._report = report
        self._say = say
        self._stop = threading.Event()
        self._started = time.monotonic()

    def run(self) -> None:
        """Write with disturbances, finish, and check."""
        report, plan = self._report, self._plan
        with ExitStack() as stack:
            self._writers = make_writers(
                self._kafka, seed=report.seed, pace=_COMPLETE_PACE if plan.is_complete else 1
            )
            for writer in self._writers.values():
                # This has no effect on a finished writer, and does not wait for one that hangs.
                stack.callback(writer.abandon)
                writer.start()
            self._started = time.monotonic()
            lanes = [
                threading.Thread(target=self._follow, args=(events,), daemon=True)
                for events in (plan.network, plan.cluster)
            ]
            for lane in lanes:
                lane.start()
            while not self._stop.is_set() and (
                any(lane.is_alive() for lane in lanes)
                if plan.is_complete
                else self._elapsed < report.seconds
            ):
                self._stop.wait(_POLL_SECONDS)
                if any(self._has_failed(writer) for writer in self._writers.values()):
                    self._stop.set()
            self._stop.set()
            for lane in lanes:
                lane.join(_JOIN_SECONDS)
                if lane.is_alive():
                    report.problems.append("an event of the plan did not finish")
            for proxy in self._kafka.proxies:
                report.strikes.update(
                    f"{strike.fault.action.value} {strike.fault.side.value}"
                    for strike in proxy.strikes
                )
            self._kafka.disarm()
            self._say(f"{self._elapsed:7.2f} s  no more faults")
            self._finish_and_check()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    @staticmethod
    def _has_failed(writer: Writer) -> bool:
        return writer.error is not None and not _is_clear(writer.error)

    def _finish_and_check(self) -> None:
        most_lost = dict.fromkeys(self._writers, 0)
        for name, writer in self._writers.items():
            try:
                writer.finish()
            except Exception as error:  # noqa: BLE001  # every error belongs in the report
                said = f"{name}: {type(error).__name__}: {error}"
                (self._report.clear_errors if _is_clear(error) else self._report.problems).append(
                    said
                )
                most_lost[name] = writer.rows - writer.acknowledged
            self._report.rows[name] = writer.acknowledged
        for name, writer in self._writers.items():
            check = writer.check(self._kafka.cluster.bootstrap_servers)
            if check != RowCheck(lost=min(check.lost, most_lost[name])):
                self._report.problems.append(f"{name}: {check}")

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            if self._stop.wait(max(event.at - self._elapsed, 0)):
                return
            self._say(f"{self._elapsed:7.2f} s  {event}")
            try:
                self._execute(event)
            except Exception as error:  # noqa: BLE001  # every error belongs in the report
                self._report.problems.append(f"{event}: {type(error).__name__}: {error}")
                self._stop.set()
                return

    def _execute(self, event: Event) -> None:
        proxy = self._kafka.proxies[event.node]
        if event.fault is not None:
            proxy.arm(event.fault)
            if self._plan.is_complete and not proxy.rules.wait_for(
                lambda strikes: any(strike.fault == event.fault for strike in strikes),
                _STRIKE_SECONDS,
            ):
                raise TimeoutError("it did not strike")
            return
        self._report.events[event.kind.value] += 1
        if event.kind is Kind.OUTAGE:
            proxy.refuse()
            time.sleep(event.seconds)
            proxy.accept()
            return
        if event.kind is Kind.MOVE_LEADERS:
            for writer in self._writers.values():
                move_leaders(self._kafka.cluster, writer.topic)
        else:
            self._disturb_broker(event)
        self._kafka.cluster.wait_until_ready()
        for writer in self._writers.values():
            self._kafka.cluster.wait_until_in_sync(writer.topic)

    def _disturb_broker(self, event: Event) -> None:
        broker = self._kafka.cluster.brokers[event.node]
        if event.kind is Kind.FREEZE:
            broker.freeze()
            time.sleep(event.seconds)
            broker.thaw()
            return
        if event.kind is Kind.KILL:
            broker.kill()
        else:
            broker.stop()
        time.sleep(event.seconds)
        broker.start()
