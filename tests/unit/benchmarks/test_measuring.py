import pytest

from benchmarks.measuring import Spread, Trial, paired_ratios


def test_the_median_and_quartiles_resist_outliers():
    """The median and the quartiles do not move, however far off one value is."""
    assert Spread(3.0, 2.0, 4.0, 1.0, 99.0) == Spread.of([99.0, 1.0, 3.0, 2.0, 4.0])


def test_a_spread_has_a_cell_for_each_figure():
    """Ratios have three decimals, since goals are a few hundredths."""
    assert ["1.020", "1.010-1.030", "0.990-1.200"] == Spread(1.02, 1.01, 1.03, 0.99, 1.2).cells()


def test_pairs_alternate_the_first_contestant_and_the_first_pair_warms_up():
    """Each ratio compares two adjacent runs: the first contestant's seconds over the second's."""
    turns = []
    seconds = {"a": iter([50.0, 3.0, 6.0]), "b": iter([1.0, 2.0, 3.0])}

    def contestant(name):
        def run():
            turns.append(name)
            return Trial(1, seconds=next(seconds[name]))

        return run

    assert [1.5, 2.0] == paired_ratios(contestant("a"), contestant("b"), pairs=2)
    assert ["b", "a", "a", "b", "b", "a"] == turns


@pytest.mark.parametrize("value", [1.0, 1.3])
def test_the_spread_of_one_value_is_that_value(value):
    """A single round has a spread as well, in which all figures are equal."""
    assert Spread(*[value] * 5) == Spread.of([value])
