"""Shapley estimators on games with known values."""

import numpy as np
import pytest

from server_app.valuation import (
    CachedUtility,
    UtilityError,
    exact_shapley,
    gtg_shapley,
    gtg_sweeps,
    tmc_shapley,
)
from tests.games import GAMES, Game, additive, airport, random_game, unanimity
from tests.oracles import gtg_sequential, shapley_by_permutations


def estimate(valuation, game: Game, seed: int = 0, **options):
    rng = np.random.default_rng(seed)
    return valuation(CachedUtility(game.utility), game.num_players, rng, **options)


@pytest.mark.parametrize("name", GAMES)
def test_exact_values_of_known_games(name):
    np.testing.assert_allclose(estimate(exact_shapley, GAMES[name]).values, GAMES[name].values)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("valuation", [gtg_shapley, tmc_shapley])
def test_sampled_values_lie_within_their_error_bars(name, valuation):
    game = GAMES[name]
    result = estimate(valuation, game, epsilon=0, permutations_per_client=400, stop="sound")
    tolerance = 4 * np.maximum(result.std_error, 1e-9)
    assert (np.abs(result.values - game.values) <= tolerance).all()


@pytest.mark.parametrize("seed", range(4))
def test_exact_equals_the_definition_on_random_games(seed):
    utility = random_game(5, seed)
    result = exact_shapley(CachedUtility(utility), 5, np.random.default_rng(0))
    np.testing.assert_allclose(result.values, shapley_by_permutations(utility, 5), atol=1e-12)
    assert result.num_evaluations == 2**5


@pytest.mark.parametrize("valuation", [exact_shapley, gtg_shapley, tmc_shapley])
class TestAxioms:
    def test_efficiency(self, valuation):
        utility = random_game(6, 3)
        cached = CachedUtility(utility)
        result = valuation(cached, 6, np.random.default_rng(1))
        everyone = utility(np.ones((1, 6), dtype=bool))[0]
        assert result.values.sum() == pytest.approx(everyone, abs=1e-3)

    def test_null_player_gets_nothing(self, valuation):
        assert estimate(valuation, unanimity([0, 2], 4)).values[[1, 3]] == pytest.approx(0)

    def test_symmetric_players_get_the_same(self, valuation):
        result = estimate(valuation, airport([2.0, 2.0, 5.0]))
        error = result.std_error[0] + result.std_error[1] + 1e-9
        assert abs(result.values[0] - result.values[1]) <= 4 * error

    def test_additivity_without_truncation(self, valuation):
        options = {} if valuation is exact_shapley else {"epsilon": 0.0, "stop": "released"}
        one, two = airport([1.0, 3.0, 2.0]), additive([1.0, 1.0, 4.0])
        both = estimate(valuation, one + two, **options)
        # `released` stops by the number of permutations, the same for all three games here.
        parts = [estimate(valuation, game, **options) for game in (one, two)]
        assert {p.num_permutations for p in parts} == {both.num_permutations}
        np.testing.assert_allclose(both.values, parts[0].values + parts[1].values, atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_lock_step_equals_the_sequential_algorithm(m, epsilon, seed):
    utility, sweeps = random_game(m, seed), 4
    fast = gtg_shapley(
        CachedUtility(utility),
        m,
        np.random.default_rng(seed),
        epsilon=epsilon,
        permutations_per_client=sweeps,
        stop="sound",
    )
    orders = gtg_sweeps(m, sweeps, np.random.default_rng(seed))
    slow, evaluations = gtg_sequential(utility, m, orders, epsilon)
    np.testing.assert_allclose(fast.values, slow, atol=1e-12)
    assert fast.num_evaluations <= min(evaluations, 2**m)


@pytest.mark.parametrize("m", [2, 3, 6])
def test_a_gtg_sweep_starts_once_with_each_player(m):
    for sweep in gtg_sweeps(m, 5, np.random.default_rng(0)):
        assert sweep[:, 0].tolist() == list(range(m))
        assert (np.sort(sweep, axis=1) == np.arange(m)).all()


def test_a_round_that_changes_nothing_is_truncated():
    game = additive([1e-5, -1e-5, 2e-5])
    result = estimate(gtg_shapley, game, epsilon=1e-4)
    assert result.truncated == result.ended == "between"
    assert result.values.tolist() == [0, 0, 0]
    assert result.num_evaluations == 2


def test_within_round_truncation_saves_evaluations():
    worth = [1.0] + [1e-6] * 7  # after player 0 there is next to nothing left to gain
    few = estimate(gtg_shapley, additive(worth), epsilon=1e-4, stop="released")
    all_ = estimate(gtg_shapley, additive(worth), epsilon=0.0, stop="released")
    assert few.truncated == "within"
    assert all_.truncated == "none"
    assert few.num_evaluations < all_.num_evaluations
    np.testing.assert_allclose(few.values, worth, atol=1e-4)


@pytest.mark.parametrize(("m", "permutations"), [(3, 21), (20, 20)])
def test_the_released_rule_stops_after_about_twenty_permutations(m, permutations):
    """Measured with the paper's released code: 21 at M=3 and 20 at M=20."""
    result = estimate(gtg_shapley, airport(list(np.arange(1.0, m + 1))), stop="released")
    assert result.num_permutations == permutations
    assert result.ended == "converged"


def test_the_sound_rule_needs_small_error_bars_of_every_client():
    game = airport([1.0, 5.0, 2.0, 9.0, 4.0, 4.5])
    result = estimate(gtg_shapley, game, permutations_per_client=10_000, stop="sound")
    assert result.ended == "converged"
    assert result.std_error.max() <= 0.1 * np.abs(result.values).max()
    capped = estimate(gtg_shapley, game, permutations_per_client=2, stop="sound")
    assert capped.ended == "cap"
    assert capped.num_permutations == 12


class TestCachedUtility:
    def test_evaluates_each_coalition_once(self):
        seen: list[tuple[bool, ...]] = []

        def utility(s):
            seen.extend(map(tuple, s.tolist()))
            return s.sum(axis=1).astype(float)

        cached = CachedUtility(utility)
        rows = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 1]], dtype=bool)
        assert cached(rows).tolist() == [2, 2, 2]
        assert cached(rows[::-1]).tolist() == [2, 2, 2]
        assert len(seen) == len(set(seen)) == cached.num_evaluations == 2

    def test_takes_the_empty_coalition_as_given(self):
        cached = CachedUtility(lambda s: s.sum(axis=1).astype(float), empty=-7.5)
        assert cached(np.array([[False, False], [True, True]])).tolist() == [-7.5, 2]
        assert cached.num_evaluations == 1

    @pytest.mark.parametrize("m", [3, 9, 17])
    def test_never_more_than_all_coalitions(self, m):
        cached = CachedUtility(lambda s: s.sum(axis=1).astype(float) ** 2, empty=0.0)
        gtg_shapley(cached, m, np.random.default_rng(0), permutations_per_client=8)
        assert cached.num_evaluations <= 2**m - 1

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_names_the_coalition_without_a_finite_utility(self, bad):
        cached = CachedUtility(lambda s: np.where(s[:, 2], bad, 1.0))
        with pytest.raises(UtilityError, match=r"coalition \[0, 2\] is (nan|inf|-inf)"):
            cached(np.array([[True, False, True]]))


@pytest.mark.parametrize("valuation", [gtg_shapley, tmc_shapley])
def test_the_seed_decides(valuation):
    game = GAMES["airport"]
    first, again = (estimate(valuation, game, seed=4).values for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != estimate(valuation, game, seed=5).values.tolist()
