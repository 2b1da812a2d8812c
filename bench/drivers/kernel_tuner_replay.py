"""One strategy of Kernel Tuner on a recorded space, many seeds; runs in Kernel Tuner's own environment.

    python kernel_tuner_replay.py SPACE.npz STRATEGY FIRST LAST EVALUATIONS

Its own simulation runner replays the space, its own budget counts unique configurations, and strategies keep their
defaults. The search space holds what the recording holds, so nothing illegal is ever run. Prints a line of JSON for
each seed: the optimum over the best found after each evaluation. A strategy that ends early keeps what it had found.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import sys
import warnings

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options, strategy_map
from kernel_tuner.runners.simulation import SimulationRunner
from kernel_tuner.searchspace import Searchspace


class Recorder(SimulationRunner):
    """Keeps what each configuration cost in the order in which they were first tried; infinity for failures."""

    def __init__(self):
        super().__init__(None, Options(kernel_name="recorded"), Options(quiet=True), 1, [])
        self.costs: list[float] = []
        self._tried: set[str] = set()

    def run(self, parameter_space, tuning_options):
        results = super().run(parameter_space, tuning_options)
        for element, result in zip(parameter_space, results, strict=True):
            key = ",".join(map(str, element))
            if result is not None and key in tuning_options.cache and key not in self._tried:
                self._tried.add(key)
                self.costs.append(float("inf") if "__error__" in result else result["time"])
        return results


def main() -> None:
    path, strategy, first, last, evaluations = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    with np.load(path) as data:
        values = json.loads(str(data["values"]))
        names = list(values)
        points = [tuple(values[n][c] for n, c in zip(names, row, strict=True)) for row in data["codes"].tolist()]
        costs = data["cost"].tolist()
    cache = {}
    for point, cost in zip(points, costs, strict=True):
        entry = {**dict(zip(names, point, strict=True)), "compile_time": 0, "verification_time": 0, "benchmark_time": 0}
        worked = not math.isnan(cost)
        entry |= {"time": cost, "times": [cost]} if worked else {"__error__": util.RuntimeFailedConfig()}
        cache[",".join(map(str, point))] = entry
    optimum = min(cost for cost in costs if not math.isnan(cost))
    for seed in range(first, last):
        space = Searchspace(None, None, None, from_cache={"tune_params": values, "cache": cache})  # it keeps neighbours
        shares = optimum / np.minimum.accumulate(run(strategy, space, cache, values, seed, evaluations))
        print(json.dumps({"seed": seed, "shares": [float(share) for share in shares]}), flush=True)


def run(strategy: str, space: Searchspace, cache: dict, values: dict, seed: int, evaluations: int) -> np.ndarray:
    """Costs in the order of evaluation, [evaluations]."""
    random.seed(seed)
    np.random.seed(seed)
    runner = Recorder()
    budget = min(evaluations, space.size)
    options = Options(
        strategy=strategy,
        strategy_options=Options(max_fevals=budget),
        max_fevals=budget,
        budget=util.TuningBudget(None, budget),
        objective=["time"],
        objective_higher_is_better=[False],
        cache=cache,
        tune_params=values,
        restrictions=[],
        restrictions_unmodified=[],
        metrics=None,
        observers=None,
        simulation_mode=True,
        verbose=False,
        quiet=True,
        seed=seed,
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            strategy_map[strategy].tune(space, runner, options)
        except (util.StopCriterionReached, ValueError) as error:  # some let their own end out
            if not runner.costs:
                raise SystemExit(f"{strategy}: {error}") from error
    costs = np.array(runner.costs[:evaluations])
    return np.pad(costs, (0, evaluations - len(costs)), constant_values=np.inf)


if __name__ == "__main__":
    main()
