import math
import os
import signal
import subprocess
import sys

from benchmarks.processes import _TICKS, CpuTime, cpu_seconds_between, spark_cpu, total_cpu


def test_cpu_time_is_counted_from_the_start_of_the_measurement():
    """A surviving process counts with the difference, and a new one with all of its time."""
    before = {1: CpuTime(0, 10 * _TICKS, 0)}
    after = {1: CpuTime(0, 12 * _TICKS, 0), 2: CpuTime(1, 3 * _TICKS, 0)}
    assert 5.0 == cpu_seconds_between(before, after)


def test_children_that_started_and_ended_are_counted():
    """A child that started and ended in between counts through its parent's time of children."""
    before = {1: CpuTime(0, 0, 4 * _TICKS)}
    after = {1: CpuTime(0, 0, 11 * _TICKS)}
    assert 7.0 == cpu_seconds_between(before, after)


def test_earlier_cpu_time_of_an_ended_child_is_excluded():
    """A parent inherits all time of an ended child, of which only the new part counts."""
    before = {1: CpuTime(0, 0, 0), 2: CpuTime(1, 20 * _TICKS, 5 * _TICKS)}
    after = {1: CpuTime(0, 0, 26 * _TICKS)}
    assert 1.0 == cpu_seconds_between(before, after)


def test_earlier_cpu_time_of_an_ended_grandchild_is_excluded():
    """If a child and its own child both end, the surviving process inherits from both."""
    before = {
        1: CpuTime(0, 0, 0),
        2: CpuTime(1, 2 * _TICKS, 0),
        3: CpuTime(2, 20 * _TICKS, 0),
    }
    after = {1: CpuTime(0, 0, 23 * _TICKS)}
    assert 1.0 == cpu_seconds_between(before, after)


def test_an_orphan_does_not_make_the_time_negative():
    """Workers that end as orphans do not reduce the total."""
    before = {1: CpuTime(0, 0, 0), 2: CpuTime(1, 20 * _TICKS, 0)}
    after = {1: CpuTime(0, 3 * _TICKS, 0)}
    assert 3.0 == cpu_seconds_between(before, after)


def test_cpu_time_is_nan_without_proc():
    """Without /proc the result is NaN instead of a wrong number."""
    assert math.isnan(cpu_seconds_between(None, None))


def test_the_time_of_a_process_includes_that_of_its_ended_children():
    """A child that has ended, and was waited for, adds its time to that of its parent."""
    before = total_cpu([os.getpid()])
    work = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", work], check=True)  # noqa: S603  # our own program
    assert sum(total_cpu([os.getpid()])) - sum(before) >= 0.15


def test_the_time_of_a_worker_is_told_from_that_of_other_processes():
    """Only processes that Spark's daemon started count as workers, and only its JVM as such."""
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", work]
    with (
        _started([*command, "pyspark.daemon"]) as worker,
        _started([*command, "org.apache.spark.deploy.SparkSubmit"]) as jvm,
        _started(command) as other,
    ):
        for process in (worker, jvm, other):
            process.stdout.readline()
            # A stopped process uses no more time.
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        times = [total_cpu([process.pid]) for process in (jvm, worker)]
        assert times == list(spark_cpu())
        for process in (worker, jvm, other):
            process.send_signal(signal.SIGCONT)
            process.communicate(b"\n")


def _started(command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  # likewise
