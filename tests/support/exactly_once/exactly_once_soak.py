"""A soak test of exactly-once writes during which processes are killed at random moments.

The seed determines which process is killed and when, except for how far a process gets within some
milliseconds. In the end, a librdkafka consumer must read every row of every batch once, the bad
ones as dead letters, and no transaction may be open. Only brokers could refuse half of these rows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.exactly_once.plan import Plan
from tests.support.exactly_once.exactly_once_processes import BAD_KINDS, BEGUN, At, Done
from tests.support.exactly_once.exactly_once_scene import scene_on, seen_once
from tests.support.exactly_once.exactly_once_world import QUERY
from tests.support.kafka.dev_kafka import EMBEDDED, start_dev_cluster
from tests.support.kafka.proxied_kafka import start_proxied_kafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.exactly_once.exactly_once_processes import Child
    from tests.support.exactly_once.exactly_once_scene import Scene

#: More points than a plan and a commit have together, so that some drivers finish.
_MOST_POINTS = 11
_MOST_VICTIMS = 3
_LONGEST_PAUSE = 0.03
#: So that others lead what a killed one has led.
_EMBEDDED_BROKERS = 3
_WORKER_KILLS = 0.3
_BROKER_KILLS = 0.02
#: What is killed, as reports name it.
VICTIMS = ("worker", "driver", "broker")
_SAY_EVERY = 25
_AFTERWARDS_SECONDS = 900


class _Killed(Exception):  # noqa: N818  it is not an error
    """The driver is to be killed now."""


@dataclass(slots=True)
class KillReport:
    """What happened in a run, and what went wrong."""

    seed: int
    seconds: float
    version: str
    batches: int = 0
    #: The dead letters by what is wrong with their rows; brokers refuse those with timestamps.
    letters: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a summary of a few lines, beginning with the seed."""
        kills = ", ".join(f"{count} x {what}" for what, count in sorted(self.kills.items()))
        return "\n".join(
            [
                f"kills on {self.version} brokers for {self.seconds:.0f} s with seed {self.seed}",
                f"  {self.batches} batches exactly once, with dead letters: {dict(self.letters)}",
                f"  SIGKILL: {kills or 'none'}",
                *(f"  PROBLEM: {problem}" for problem in self.problems),
            ]
        )


def run_kill_soak(
    *, seed: int, seconds: float, version: str, say: Callable[[str], None] = print
) -> KillReport:
    """Write batches and kill processes for some seconds; return a checked report.

    `version` may be EMBEDDED: three embedded brokers that replicate. It goes on until each of
    VICTIMS was killed; the first one of each is killed as soon as it can be.

    Raises KafkaUnavailableError.
    """
    report = KillReport(seed, seconds, version)
    lifetime = seconds + _AFTERWARDS_SECONDS
    starting = (
        start_dev_cluster(_EMBEDDED_BROKERS)
        if version == EMBEDDED
        else start_proxied_kafka(version, seed=seed, lifetime_seconds=lifetime)
    )
    with starting as kafka, scene_on(kafka) as scene:
        _KillSoak(scene, report, random.Random(f"kills {seed}")).run(say)
    return report


class _KillSoak:
    """One run."""

    def __init__(self, scene: Scene, report: KillReport, chance: random.Random) -> None:
        self._scene = scene
        self._report = report
        self._chance = chance

    def run(self, say: Callable[[str], None]) -> None:
        """Write batch after batch, then check all of them."""
        world, report = self._scene.world, self._report
        ends_at = time.monotonic() + report.seconds
        while time.monotonic() < ends_at or len(report.kills) < len(VICTIMS):
            batch_id = report.batches
            if self._must_kill("worker", _WORKER_KILLS):
                self._kill_a_worker()
            tries = self._chance.randint(0 if report.kills["driver"] else 1, _MOST_VICTIMS)
            if not any(self._try(batch_id) for _ in range(tries)):
                world.finish(batch_id)
            report.batches += 1
            if report.batches % _SAY_EVERY == 0:
                say(f"  batch {report.batches}, {report.kills.total()} kills")
        world.driver("last").plan()
        seen, expected = self._scene.read_committed(), seen_once(*range(report.batches))
        report.letters = self._scene.letters_by_kind()
        kinds = dict.fromkeys(BAD_KINDS, len(expected.letters) // len(BAD_KINDS))
        if kinds != report.letters:
            report.problems.append(f"dead letters are {dict(report.letters)}, not {kinds}")
        for topic, found, right in zip(seen._fields, seen, expected, strict=True):
            lost, more = Counter(right) - Counter(found), Counter(found) - Counter(right)
            if lost or more:
                problem = f"{topic}: lost {sorted(lost)[:5]}, too many {sorted(more)[:5]}"
                report.problems.append(problem)
        if still_open := world.left_open():
            report.problems.append(f"left open: {still_open}")

    def _must_kill(self, victim: str, probability: float) -> bool:
        return not self._report.kills[victim] or self._chance.random() < probability

    def _try(self, batch_id: int) -> bool:
        """Write a batch with a driver that may be killed on its way; return whether it finished."""
        world = self._scene.world
        points = self._chance.randint(0, _MOST_POINTS) if self._report.kills["driver"] else 0
        with self._scene.driver() as driver:
            try:
                driver.begin("plan", QUERY)
                points, plan = self._run_past_points(driver, points)
                assert isinstance(plan, Plan)
                if plan.must_write(QUERY, batch_id):
                    driver.begin("commit", plan, QUERY, batch_id, world.worker.run(plan, batch_id))
                    self._run_past_points(driver, points)
            except _Killed:
                self._report.kills["driver"] += 1
                return False
        return True

    def _run_past_points(self, driver: Child, points: int) -> tuple[int, object]:
        """Pass this many points; raise _Killed some milliseconds after the next one."""
        while isinstance(message := driver.next(), At):
            if self._must_kill("broker", _BROKER_KILLS):
                brokers = len(self._scene.kafka.cluster.brokers)
                self._scene.restart_broker(self._chance.randrange(brokers))
                self._report.kills["broker"] += 1
            driver.go()
            if points == 0:
                time.sleep(self._chance.uniform(0, _LONGEST_PAUSE))
                raise _Killed
            points -= 1
        assert isinstance(message, Done), message
        return points, message.result

    def _kill_a_worker(self) -> None:
        """Leave a task's transaction behind, with or without records in it."""
        plan = self._scene.world.driver().plan()
        with self._scene.new_worker() as victim:
            victim.begin("write_on", plan, 0)
            victim.run_to(BEGUN)
            victim.go()
            time.sleep(self._chance.uniform(0, 10 * _LONGEST_PAUSE))
        self._report.kills["worker"] += 1
