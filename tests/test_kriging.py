"""Kriging, `auto` and budgets: on games with known values, and on smooth games of averages."""

import numpy as np
import pytest

from common.config import ConfigError, RunConfig
from server_app.coalitions import Budget
from server_app.kriging import MAX_PER_PLAYER, MAX_RELATIVE_ERROR, first_design, more_coalitions
from server_app.kriging import shapley_nodes as nodes
from server_app.valuation import (
    CachedUtility,
    UtilityError,
    auto_shapley,
    exact_shapley,
    gtg_shapley,
    kriging_shapley,
    tmc_shapley,
    valuation_from,
)
from tests.games import GAMES, Game, additive, airport, averages, random_game


def cached_averages(m: int, seed: int, known: bool = True) -> tuple[CachedUtility, Game]:
    game, weights, points = averages(m, seed)
    where = {"weights": weights, "points": points} if known else {}
    return CachedUtility(
        game.utility, float(game.utility(~np.ones((1, m), bool))[0]), **where
    ), game


def distance(a, b):
    return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("m", [2, 3, 6, 9])
def test_complete_nodes_are_the_shapley_value(m):
    utility = random_game(m, 1)
    rule, everyone = nodes(m, 1500, 600), utility(np.ones((1, m), bool))[0]
    exact = exact_shapley(CachedUtility(utility), m, np.random.default_rng(0)).values
    values = everyone / m + utility(rule.coalitions) @ rule.weights
    np.testing.assert_allclose(values, exact, atol=1e-12)


def test_sampled_nodes_are_exact_for_linear_games():
    m, worth = 14, np.linspace(-1, 2, 14)
    rule = nodes(m, 10, 60)
    size = rule.coalitions.sum(axis=1)
    game = (rule.coalitions @ worth) * np.sqrt(size) + size**2  # linear within each size
    effects = np.sqrt(np.arange(1, m)).mean() * (worth - worth.mean()) * m / (m - 1)
    np.testing.assert_allclose(game @ rule.weights, effects * (m - 1) / m, atol=1e-9)


@pytest.mark.parametrize("name", GAMES)
def test_small_cohorts_are_valued_exactly(name):
    game = GAMES[name]
    result = kriging_shapley(
        CachedUtility(game.utility), game.num_players, np.random.default_rng(0)
    )
    tolerance = 4 * np.maximum(result.std_error, 1e-9)
    assert (np.abs(result.values - game.values) <= tolerance).all()


@pytest.mark.parametrize("m", [8, 15])
def test_additive_and_airport_games_lie_within_error_bars(m):
    for game in (additive(list(np.linspace(-1, 2, m))), airport(list(np.arange(1.0, m + 1)))):
        result = kriging_shapley(CachedUtility(game.utility), m, np.random.default_rng(2))
        assert (np.abs(result.values - game.values) <= 4 * result.std_error + 1e-3).all()
        assert result.values.sum() == pytest.approx(game.values.sum(), abs=1e-6)


def test_error_bars_cover_the_exact_values():
    """1.96 standard errors cover nine values of ten or more; half of them cover far fewer."""
    z = []
    for seed in range(200):
        utility, game = cached_averages(9, seed)
        result = kriging_shapley(utility, 9, np.random.default_rng(seed))
        assert result.num_evaluations < 2**9 - 1
        z.append((result.values - game.values) / result.std_error)
    covered = np.abs(z) <= 1.96
    assert covered.mean() >= 0.9
    assert (np.abs(z) <= 0.3).mean() < 0.9  # bars that are not merely too long


def test_structureless_games_have_honest_bars():
    covered = []
    for seed in range(40):
        utility = random_game(8, seed)
        exact = exact_shapley(CachedUtility(utility), 8, np.random.default_rng(0)).values
        budget = Budget(evaluations=100)
        result = kriging_shapley(
            CachedUtility(utility), 8, np.random.default_rng(seed), budget=budget
        )
        assert result.ended == "budget"
        covered.append(np.abs(result.values - exact) <= 1.96 * result.std_error)
    assert np.mean(covered) >= 0.9


def test_it_is_three_times_closer_than_gtg_of_as_many_evaluations():
    for seed in range(5):
        utility, game = cached_averages(10, seed)
        result = kriging_shapley(utility, 10, np.random.default_rng(seed))
        other, _ = cached_averages(10, seed)
        gtg = gtg_shapley(other, 10, np.random.default_rng(seed), stop="released", epsilon=0)
        assert distance(result.values, game.values) < distance(gtg.values, game.values) / 3
        assert result.num_evaluations <= gtg.num_evaluations


def test_knowing_what_is_averaged_helps():
    def error(known):
        distances = []
        for seed in range(10):
            utility, game = cached_averages(10, seed, known)
            budget = Budget(evaluations=60)
            result = kriging_shapley(utility, 10, np.random.default_rng(seed), budget=budget)
            distances.append(distance(result.values, game.values))
        return np.median(distances)

    assert error(True) < error(False) / 2


def test_it_stops_when_the_bars_are_small():
    utility, _ = cached_averages(10, 3)
    result = kriging_shapley(utility, 10, np.random.default_rng(0))
    assert result.ended == "converged"
    assert result.std_error.max() <= MAX_RELATIVE_ERROR * np.abs(result.values).max() * 1.05
    hard = CachedUtility(random_game(11, 0))
    result = kriging_shapley(hard, 11, np.random.default_rng(0))
    assert result.ended == "cap"
    assert result.num_evaluations <= MAX_PER_PLAYER * 11 + 1


def with_part(m: int, seed: int) -> tuple[CachedUtility, CachedUtility, Game]:
    """A game, and its part on a quarter of the examples."""
    (game, weights, points), (fewer, _, _) = averages(m, seed), averages(m, seed, examples=5)
    part = CachedUtility(fewer.utility, None, weights, points, cost=0.25)
    return CachedUtility(game.utility, None, weights, points, part), part, game


def test_a_part_spares_evaluations_and_the_values_are_those_of_the_whole():
    m, covered = 10, []
    for seed in range(40):
        utility, part, game = with_part(m, seed)
        result = kriging_shapley(utility, m, np.random.default_rng(seed))
        seen = part.num_evaluations
        assert result.num_evaluations == utility.num_evaluations == 2 * m + 2 + seen
        assert seen >= 0.25 * 4 * m  # at least four coalitions a player, each a quarter
        covered.append(np.abs(result.values - game.values) <= 1.96 * result.std_error)
        empty, everyone = game.utility(np.array([[False] * m, [True] * m]))
        assert result.values.sum() == pytest.approx(everyone - empty, abs=1e-6)
    assert np.mean(covered) >= 0.86  # 0.90 over 150 games, where the whole's cover 0.94


def test_without_the_difference_the_part_s_values_are_others():
    """What the test above shows is not that the two games are the same."""
    utility, part, game = with_part(10, 0)
    result = kriging_shapley(utility, 10, np.random.default_rng(0))
    alone = kriging_shapley(part, 10, np.random.default_rng(0))
    assert distance(result.values, game.values) < distance(alone.values, game.values) / 10


def test_a_part_with_an_unusable_utility_names_the_coalition():
    utility, _, game = with_part(10, 0)
    utility.part = CachedUtility(lambda s: np.where(s.sum(axis=1) == 5, np.nan, game.utility(s)))
    with pytest.raises(UtilityError, match="the utility of the coalition"):
        kriging_shapley(utility, 10, np.random.default_rng(0))


def test_clients_that_sent_the_same_share_alike():
    same, points = np.ones(8), np.ones((8, 3))
    utility = CachedUtility(lambda s: s.any(axis=1).astype(float), 0.0, same, points)
    result = kriging_shapley(utility, 8, np.random.default_rng(0))
    np.testing.assert_allclose(result.values, 1 / 8, atol=1e-6)


def test_a_design_repeats_no_coalition():
    rows = first_design(9)
    for seed in range(4):
        rows = more_coalitions(rows, 20, np.random.default_rng(seed))
    assert len(rows) == 19 + 80 == len(np.unique(rows, axis=0))
    assert rows.any(axis=1).all()


def test_unusable_utilities_are_named():
    utility = CachedUtility(lambda s: np.where(s.sum(axis=1) == 3, np.nan, 1.0))
    with pytest.raises(UtilityError, match=r"coalition \[\d, \d, \d\] is nan"):
        kriging_shapley(utility, 9, np.random.default_rng(0))


class TestAuto:
    def test_exact_within_the_budget(self):
        for m, budget, ended in ((7, 0, "exact"), (8, 255, "exact"), (9, 500, "converged")):
            utility, game = cached_averages(m, 0)
            result = auto_shapley(
                utility, m, np.random.default_rng(0), epsilon=0, budget=Budget(budget)
            )
            assert result.ended == ended
            if ended == "exact":
                np.testing.assert_allclose(result.values, game.values, atol=1e-12)

    def test_a_round_that_changes_nothing_is_truncated(self):
        utility = CachedUtility(additive([1e-6] * 9).utility)
        result = auto_shapley(utility, 9, np.random.default_rng(0))
        assert (result.ended, result.num_evaluations) == ("between", 2)
        assert not result.values.any()

    def test_the_released_rule_is_gtg(self):
        config = RunConfig.from_flat({"valuation-stop": "released"}).valuation
        utility = random_game(8, 0)
        got, gtg = (
            valuation(CachedUtility(utility), 8, np.random.default_rng(3))
            for valuation in (
                valuation_from(config, True),
                lambda u, m, rng: gtg_shapley(u, m, rng, stop="released"),
            )
        )
        assert got.values.tolist() == gtg.values.tolist()

    def test_algorithms_without_values_stay_without(self):
        config = RunConfig().valuation
        assert valuation_from(config, False) is None
        assert valuation_from(config, True).func is auto_shapley


class TestBudgets:
    @pytest.mark.parametrize("valuation", [gtg_shapley, tmc_shapley, kriging_shapley])
    def test_evaluations_are_a_hard_limit(self, valuation):
        full = valuation(CachedUtility(random_game(10, 1)), 10, np.random.default_rng(0))
        utility = CachedUtility(random_game(10, 1))
        result = valuation(utility, 10, np.random.default_rng(0), budget=Budget(150))
        assert result.ended == "budget"
        assert result.num_evaluations <= 150 < full.num_evaluations
        assert (result.std_error > 0).all()

    @pytest.mark.parametrize("valuation", [gtg_shapley, tmc_shapley, kriging_shapley])
    def test_seconds_leave_one_pass(self, valuation):
        utility = CachedUtility(random_game(10, 1))
        budget = Budget(seconds=1e-9)
        result = valuation(utility, 10, np.random.default_rng(0), budget=budget)
        assert result.ended == "budget"
        assert result.num_evaluations <= 92
        assert (result.values != 0).all()

    @pytest.mark.parametrize(
        ("keys", "least"),
        [
            ({"valuation": "exact"}, 1023),
            ({"valuation": "exact", "valuation-examples": 9}, 1024),
            ({"valuation": "gtg"}, 91),
            ({"valuation-stop": "released"}, 91),
            ({}, 40),
            ({"valuation": "kriging"}, 40),
        ],
    )
    def test_a_budget_too_small_for_one_pass_is_refused(self, keys, least):
        keys = {"clients-per-round": 10, "num-clients": 20} | keys
        RunConfig.from_flat(keys | {"valuation-max-evaluations": least})
        with pytest.raises(ConfigError, match=f"needs {least}; raise it"):
            RunConfig.from_flat(keys | {"valuation-max-evaluations": least - 1})


@pytest.mark.parametrize("empty", [0.0, None])
@pytest.mark.parametrize("evaluations", [254, 255, 256])
def test_auto_keeps_to_its_budget(empty, evaluations):
    """Where the empty coalition is not known, it costs one evaluation too."""
    utility = CachedUtility(random_game(8, 4), empty)
    budget = Budget(evaluations)
    result = auto_shapley(utility, 8, np.random.default_rng(0), budget=budget)
    assert result.num_evaluations <= evaluations
    assert (result.ended == "exact") == (evaluations >= 255 + (empty is None))


def test_truncated_marginals_are_not_kept_as_utilities():
    """A prefix that truncation skipped is evaluated when it is asked for."""
    game = additive([1.0] + [1e-6] * 7)
    utility = CachedUtility(game.utility)
    result = gtg_shapley(utility, 8, np.random.default_rng(0), epsilon=1e-4)
    assert result.truncated == "within"
    everything = (np.arange(2**8)[:, None] >> np.arange(8) & 1).astype(bool)
    # far below what truncation would have put there, the utility of a shorter prefix
    np.testing.assert_allclose(utility(everything), game.utility(everything), atol=1e-12)
