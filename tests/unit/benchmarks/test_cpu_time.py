from benchmarks.cpu_time import COUNTING, LEAN, Targets, Usage, comparisons
from benchmarks.processes import CpuSeconds
from benchmarks.spark_write import JVM_TUNED, OURS


def test_the_median_of_several_writes_is_that_of_each_value():
    """Each value has its own median, since no single write has all of them."""
    assert Usage(2.0, CpuSeconds(1, 2), CpuSeconds(3, 4), CpuSeconds(5, 6)) == Usage.median(
        [
            Usage(1.0, CpuSeconds(1, 9), CpuSeconds(3, 4), CpuSeconds(5, 0)),
            Usage(2.0, CpuSeconds(0, 2), CpuSeconds(9, 9), CpuSeconds(7, 6)),
            Usage(3.0, CpuSeconds(8, 1), CpuSeconds(1, 0), CpuSeconds(4, 8)),
        ]
    )


def _usage(rate, workers):
    return Usage(rate, CpuSeconds(1, 1), CpuSeconds(workers, 0.25), CpuSeconds(1, 1))


USAGES = {
    JVM_TUNED: _usage(rate=1, workers=0),
    OURS: _usage(rate=2, workers=0.625),
    LEAN: _usage(rate=3, workers=0.5),
    COUNTING: _usage(rate=4, workers=0.25),
}


def test_costs_above_counting_are_compared_with_the_lean_sink():
    """Our sink has targets, for its cost and its rate; the lean sink shows what is possible."""
    targets = Targets(lean=1.4, jvm=1.9)
    assert {
        JVM_TUNED: ["", "", "", "", ""],
        OURS: ["0.375", "1.50x", "<= 1.4 MISSED", "2.00x", ">= 1.9 met"],
        LEAN: ["0.250", "", "", "3.00x", ""],
        COUNTING: ["", "", "", "", ""],
    } == {name: comparisons(name, USAGES, targets) for name in USAGES}


def test_a_comparison_may_have_no_target_or_no_jvm_sink():
    """The cells of missing targets are empty, and those of a missing sink."""
    without_jvm = {name: usage for name, usage in USAGES.items() if name != JVM_TUNED}
    assert ["0.375", "1.50x", "", "", ""] == comparisons(OURS, without_jvm, Targets(None, 1.9))


def test_a_cost_lost_in_noise_meets_no_target():
    """If the lean sink took no more time than counting, the run was too short to compare."""
    short = USAGES | {LEAN: USAGES[COUNTING]}
    assert ["0.375", "nanx", "<= 1.4 MISSED"] == comparisons(OURS, short, Targets(1.4, 1.9))[:3]
