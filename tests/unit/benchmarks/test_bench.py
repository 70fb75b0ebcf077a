import pytest

from benchmarks import bench, kernel, spark_write


def test_the_help_says_what_each_section_measures(monkeypatch, capsys):
    """Each section has a line of the help, which its module's docstring begins with."""
    monkeypatch.setattr("sys.argv", ["bench", "--help"])
    with pytest.raises(SystemExit) as ended:
        bench._arguments()
    assert 0 == ended.value.code
    listed = [
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.partition("sections:\n")[2].splitlines()
    ]
    assert list(bench.SECTIONS) == [name for name, _ in listed]
    about = dict(listed)
    assert kernel.__doc__ == about["kernel"]
    assert spark_write.__doc__ == about["write"]
    assert (
        "Measure the fixed cost of a write beside a Python sink that does nothing."
        == (about["one-row"])
    )
