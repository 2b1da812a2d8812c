from kforge.core.summary import Summary


def test_a_summary_is_the_median_and_the_interquartile_range_over_it():
    found = Summary.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.median, found.count) == (3.0, 5)
    assert found.spread == 2.0 / 3.0
    assert str(found) == "3 ±33.3 %"


def test_one_outlier_moves_neither_number_far():
    quiet, disturbed = Summary.of([10.0] * 9), Summary.of([10.0] * 8 + [1000.0])
    assert quiet == disturbed


def test_a_single_figure_and_a_median_of_zero_have_no_spread():
    assert Summary.of([7.0]) == Summary(7.0, 0.0, 1)
    assert Summary.of([0.0, 0.0, 1.0]).spread == 0.0
