import time

from benchmarks.micro_batches import _add_row, batch_seconds


def _report(batch_id, milliseconds, rows):
    durations = {"triggerExecution": milliseconds, "addBatch": milliseconds - 1}
    return {"batchId": batch_id, "numInputRows": rows, "durationMs": durations}


def test_whole_micro_batches_after_the_first_ones_are_timed():
    """The first ones start workers, and a trigger without rows is not a micro-batch."""
    reports = [_report(0, 5000, 10), _report(1, 300, 10), _report(2, 20, 0), _report(2, 250, 1)]
    assert [0.3, 0.25] == batch_seconds(reports, first_batch=1)


def test_a_row_contains_its_creation_time(tmp_path):
    """A single file with the nanoseconds since 1970 appears."""
    before = time.time_ns()
    _add_row(tmp_path, 7)
    (file,) = tmp_path.iterdir()
    assert "000007.txt" == file.name
    assert before <= int(file.read_text()) <= time.time_ns()
