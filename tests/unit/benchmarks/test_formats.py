import pytest

from benchmarks import format_kernels
from benchmarks.format_kernels import checked_json_runs, shapes
from benchmarks.format_payloads import orders
from benchmarks.formats import median_cpu_ratio, median_ratio
from benchmarks.measuring import Trial


def test_a_ratio_is_the_median_of_those_within_the_rounds():
    """A slow round slows both, and does not change their ratio."""
    ours = [Trial(100, seconds) for seconds in (1.0, 10.0, 1.0)]
    others = [Trial(100, seconds) for seconds in (2.0, 20.0, 5.0)]
    assert 2.0 == median_ratio(ours, others)


def test_a_ratio_of_processor_times_is_the_median_of_those_within_the_rounds():
    """One that takes twice the processor time has 2, whatever the rounds took."""
    ours = [Trial(100, cpu_seconds=seconds) for seconds in (2.0, 30.0, 2.0)]
    others = [Trial(100, cpu_seconds=seconds) for seconds in (1.0, 10.0, 1.0)]
    assert 2.0 == median_cpu_ratio(ours, others)


@pytest.mark.parametrize("name", shapes())
def test_every_shape_is_encoded_and_decoded_as_by_fastavro(name):
    """What is measured is correct: it is checked before each measurement."""
    runs = format_kernels.checked_runs(name, shapes()[name])
    assert (name, "by id") in runs
    assert all(run() > 0 for run in runs.values())


def test_json_is_written_and_read_as_the_same_rows():
    """What is measured beside pyarrow and Python's module is correct, too."""
    runs = checked_json_runs(orders()[:2000])
    assert ("JSON", "decode") in runs
    assert ("JSON", "encode") in runs
