from benchmarks.cpu_time import Usage
from benchmarks.processes import CpuSeconds


def test_the_median_of_several_writes_is_that_of_each_value():
    """Each value has its own median, since no single write has all of them."""
    assert Usage(2.0, CpuSeconds(1, 2), CpuSeconds(3, 4), CpuSeconds(5, 6)) == Usage.median(
        [
            Usage(1.0, CpuSeconds(1, 9), CpuSeconds(3, 4), CpuSeconds(5, 0)),
            Usage(2.0, CpuSeconds(0, 2), CpuSeconds(9, 9), CpuSeconds(7, 6)),
            Usage(3.0, CpuSeconds(8, 1), CpuSeconds(1, 0), CpuSeconds(4, 8)),
        ]
    )
