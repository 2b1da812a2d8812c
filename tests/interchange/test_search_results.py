"""A run's trials as T4 and Kernel Tuner files: nothing is lost on the way back, and bad files are refused by field."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kforge.backends import templates
from kforge.cli import bring_in, export
from kforge.core.errors import KforgeError
from kforge.core.recording import ABSENT, Recording, Result
from kforge.core.trial import FailureClass
from kforge.core.workload import Problem, Workload
from kforge.interchange import kernel_tuner, recordings, t4
from kforge.registry.database import Registry
from kforge.targets.files import load_target
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.points import Space
from kforge.tuner.run_view import view_of
from tests.tuner import run_folders

ROOT = Path(__file__).resolve().parents[2]
# One point of a public brute-forced space, and one of it that failed: FAIR Benchmark Hub for Auto-Tuning
# (AutoTuningAssociation/benchmark_hub, DOI 10.5281/zenodo.15364124), convolution on an NVIDIA A4000, MIT licence,
# runtimes cut to two.
HUB: dict[str, Any] = {
    "metadata": {"timeunit": "miliseconds"},
    "results": [
        {
            "timestamp": "2023-12-22 09:53:48.691683+00:00",
            "configuration": {"block_size_x": 16, "block_size_y": 1, "use_padding": 0},
            "times": {"compilation": 892.914007185027, "framework": 81.5494388807565, "search_algorithm": 0,
                      "validation": 0, "runtimes": [5.302271842956543, 5.2254719734191895]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 5.9, "unit": "ms"}],
            "objectives": ["time"],
        },
        {
            "timestamp": "2023-12-22 10:35:38.815893+00:00",
            "configuration": {"block_size_x": 32, "block_size_y": 16, "use_padding": 0},
            "times": {"compilation": 3436.9683500844985, "framework": 1.7427881248295307, "search_algorithm": 0,
                      "validation": 0},
            "invalidity": "runtime",
            "correctness": 0,
            "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": ""}],
            "objectives": ["time"],
        },
    ],
    "schema_version": "1.0.0",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with run_folders.start(tmp_path / "runs") as folder:
        run_folders.search(folder)
    return folder.path


@pytest.fixture
def spaces(run: Path) -> tuple[Recording, ...]:
    return recordings.of_run(view_of(run)).spaces


def written(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_run_comes_back_from_t4_point_by_point(run: Path, spaces: tuple[Recording, ...], tmp_path: Path) -> None:
    tried = view_of(run).tried
    assert [len(s.results) for s in spaces] == [len({(t.rows, t.trial.params) for t in tried if t.bucket == s.kernel})
                                                for s in spaces]
    for space in spaces:
        back = t4.read(written(tmp_path / "x.json", t4.document(space)))
        assert (back.kernel, back.device, back.size, back.origin) == (
            space.kernel, space.device, space.size, space.origin)
        for mine, theirs in zip(space.results, back.results, strict=True):
            assert (theirs.values, theirs.failure, theirs.spread) == (mine.values, mine.failure, mine.spread)
            assert (theirs.seconds or 0.0) == pytest.approx(mine.seconds or 0.0, rel=1e-12)
    failed = [r.failure for s in spaces for r in s.failed]
    assert FailureClass.INEXACT in failed and FailureClass.COMPILE in failed  # finer than T4's own words


@pytest.mark.parametrize("kind", [k for k in FailureClass if k is not FailureClass.HARNESS])
def test_every_failure_of_a_candidate_has_a_word_in_t4_and_survives(kind: FailureClass, tmp_path: Path) -> None:
    space = Recording("k", "d", (1,), ("a",), (Result((1,), 1e-3), Result((2,), None, kind, "so")))
    for form in (t4, kernel_tuner):
        back = form.read(written(tmp_path / "x.json", form.document(space)))
        assert [r.failure for r in back.results] == [None, kind]


def test_a_layout_is_a_coordinate_and_no_part_of_the_problem(run: Path) -> None:
    """The keys of a real run's buckets name the layout that its plan began with."""
    view = view_of(run)
    laid = {t.bucket: str(Workload(Problem.parse(t.task).with_rows(32), Workload.parse(t.bucket).dynamic).key)
            for t in view.tried if t.rows}
    tried = tuple(dataclasses.replace(t, bucket=laid.get(t.bucket, t.bucket)) for t in view.tried)
    found = recordings.of_run(dataclasses.replace(view, tried=tried))
    assert found == recordings.of_run(view) and "rows" not in found.spaces[0].kernel
    assert set(found.spaces[0].choices["rows"]) == {16, 32, 64}


def test_trials_that_say_nothing_of_a_point_stay_here_and_are_counted(run: Path) -> None:
    """The harness's own failures, and what was built and checked where there was no device to time it."""
    view = view_of(run)
    first = next(t for t in view.tried if t.trial.failure)
    assert first.trial.failure
    ours = dataclasses.replace(first.trial.failure, kind=FailureClass.HARNESS)
    for trial, said in ((dataclasses.replace(first.trial, failure=ours), "1 trials in which the harness failed"),
                        (dataclasses.replace(first.trial, failure=None), "1 trials that were built and checked")):
        tried = tuple(dataclasses.replace(t, trial=trial) if t is first else t for t in view.tried)
        found = recordings.of_run(dataclasses.replace(view, tried=tried))
        assert found.left_out[0].startswith(said)
        for space in found.spaces:
            assert t4.document(space)


def test_a_public_file_is_read_as_it_is(tmp_path: Path) -> None:
    document = copy.deepcopy(HUB)
    document["results"] += [copy.deepcopy(HUB["results"][0]), copy.deepcopy(HUB["results"][0])]
    document["results"][2]["invalidity"] = "constraints"
    document["results"][2]["configuration"]["block_size_x"] = 7
    packed = tmp_path / "convolution.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(document).encode()))
    found = t4.read(packed)
    assert found.kernel == "convolution" and found.parameters == ("block_size_x", "block_size_y", "use_padding")
    assert found.excluded == 1 and len(found.results) == 2 and found.origin is None  # a point is there once
    assert found.best and found.best.seconds == pytest.approx(5.9e-3)
    assert found.best.runtimes == pytest.approx([5.302271842956543e-3, 5.2254719734191895e-3])
    assert [r.failure for r in found.failed] == [FailureClass.CRASH]
    assert recordings.seeds_of(found, packed.name) == ()  # their parameters are no template's


def test_times_are_taken_in_the_unit_that_the_file_says(tmp_path: Path) -> None:
    document = copy.deepcopy(HUB)
    document["results"][0]["measurements"] = [{"name": "time", "value": 5900, "unit": "us"}]
    assert t4.read(written(tmp_path / "a.json", document)).results[0].seconds == pytest.approx(5.9e-3)
    document["results"][0]["measurements"] = []
    document["metadata"] = {"timeunit": "microseconds"}
    found = t4.read(written(tmp_path / "b.json", document)).results[0]
    assert found.seconds == pytest.approx((5.302271842956543e-6 + 5.2254719734191895e-6) / 2)


def _changed(*path: str | int, value: object) -> dict[str, Any]:
    document = copy.deepcopy(HUB)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (_changed("schema_version", value="2.0.0"), "schema_version is 2.0.0"),
        (_changed("schema_version", value=None), "schema_version: Field required"),
        (_changed("results", value=[]), "results: "),
        (_changed("results", 1, "invalidity", value="sad"), "results.1.invalidity: "),
        (_changed("results", 0, "configuration", value={"block_size_x": [1]}), "results.0.configuration.block_size_x"),
        (_changed("results", 1, "configuration", value={"other": 1}), "results.1.configuration: "),
        (_changed("results", 0, "measurements", 0, "value", value="fast"), "results.0.measurements.time: "),
        (_changed("results", 0, "measurements", 0, "value", value=-1), "results.0: a call cannot take -0.001 s"),
        (_changed("results", 0, "measurements", 0, "unit", value="days"), "results.0.measurements.time.unit: 'days'"),
        (_changed("metadata", "timeunit", value="weeks"), "metadata.timeunit: 'weeks'"),
        (_changed("metadata", "kforge", value={"kernel": 3}), "metadata.kforge.kernel: "),
        ("[]", "dictionary"),
        ('{"results": ', "is no JSON"),
    ],
)
def test_a_bad_t4_file_is_refused_with_its_name_and_the_field(document: object, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.json", document)
    with pytest.raises(KforgeError) as refused:
        t4.read(path)
    assert str(refused.value).startswith(str(path)) and said in str(refused.value), refused.value
    assert "\n" not in str(refused.value)


def test_a_damaged_packed_file_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(json.dumps(HUB).encode())[:-20])
    with pytest.raises(KforgeError, match=r"x\.json\.gz"):
        t4.read(path)


def test_a_cache_of_kernel_tuner_has_one_template_each_and_is_closed_as_it_closes_them(
    spaces: tuple[Recording, ...], tmp_path: Path
) -> None:
    linear = spaces[0]
    other = [dataclasses.replace(r, values=("cpp/linear/other.cc.j2", *r.values[1:-1], ABSENT))
             for r in linear.results[:2]]
    mixed = dataclasses.replace(linear, results=(*linear.results, *other))
    parts = list(recordings.by_template(mixed))
    assert [len(p.results) for p in parts] == [len(linear.results), 2]
    assert parts[0].parameters == linear.parameters and parts[1].parameters == linear.parameters[:-1]
    for part in parts:
        text = kernel_tuner.document(part)
        assert text.endswith("}\n}")  # what tells it a closed file
        said = json.loads(text)
        assert list(said["tune_params"]) == said["tune_params_keys"] == list(part.parameters)
        assert list(said["cache"]) == [",".join(map(str, r.values)) for r in part.results]
        back = kernel_tuner.read(written(tmp_path / "x.json", text))
        assert back.parameters == part.parameters and [r.values for r in back.results] == [
            r.values for r in part.results]


def test_a_cache_that_was_left_open_is_read_as_far_as_it_goes(spaces: tuple[Recording, ...], tmp_path: Path) -> None:
    text = kernel_tuner.document(spaces[0])
    lines = text.splitlines()
    cut = written(tmp_path / "x.json", "\n".join(lines[:-4]))  # ends with a comma, as an interrupted tuning leaves it
    assert len(kernel_tuner.read(cut).results) == len(spaces[0].results) - 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tune_params_keys": ["a", "b"]}, "tune_params has not the parameters of tune_params_keys"),
        ({"device_name": None}, "device_name: "),
        ({"cache": {}}, "cache: "),
        ({"cache": {"1": {"time": 2.0}}}, "cache.1: it has no value of a"),
        ({"cache": {"1": {"a": 1}}}, "cache.1: it has no time"),
        ({"cache": {"1": {"a": 1, "time": True}}}, "cache.1.time: "),
        ({"cache": {"1": {"a": [1], "time": 2.0}}}, "cache.1.a: "),
        ({"cache": {"1": {"a": 1, "time": "InvalidConfig"}}}, "every point is outside the space"),
    ],
)
def test_a_bad_cache_is_refused_with_its_name_and_the_field(change: dict, said: str, tmp_path: Path) -> None:
    good = {"device_name": "d", "kernel_name": "k", "problem_size": [1], "tune_params_keys": ["a"],
            "tune_params": {"a": [1]}, "cache": {"1": {"a": 1, "time": 2.0}}}
    assert len(kernel_tuner.read(written(tmp_path / "good.json", json.dumps(good, indent=0))).results) == 1
    path = written(tmp_path / "bad.json", json.dumps({**good, **change}, indent=0))
    with pytest.raises(KforgeError) as refused:
        kernel_tuner.read(path)
    assert str(refused.value).startswith(str(path)) and said in str(refused.value), refused.value


def test_the_fastest_points_of_another_machine_begin_a_search_here_and_nothing_else(tmp_path: Path) -> None:
    """As points of the same template; what is no legal point here is left out, not moved to its nearest."""
    target = load_target("zen4")
    problem = Problem.of("linear", K=576, N=960, weight="q4_1", act="a8", epilogue="none", bias=0)
    task = Task(problem, (Bucket(Workload.of(problem, M=8), ()),))
    space = Space(task, templates.load("linear"), target)
    legal = [p for p in space.points if p.rows == 32][5]
    odd = dataclasses.replace(legal, params=tuple((k, 999 if isinstance(v, int) else v) for k, v in legal.params))
    names = ("template", "rows", *(name for name, _ in legal.params))
    origin = recordings.Origin(problem.key, Workload.of(problem, M=8).key, "elsewhere", "big", "r")
    found = Recording("k", "big", (8,), names, tuple(
        Result((p.template, p.rows, *(v for _, v in p.params)), 1e-6 * n) for n, p in enumerate((odd, legal), 1)
    ), origin)
    seeds = recordings.seeds_of(found, "x.json")
    with Registry.open(tmp_path / "registry.db") as registry:
        assert registry.add_seeds(seeds) == 2 and registry.add_seeds(seeds) == 0  # each is kept once
        at = registry.seeds(task.at(32), target.identity)
        assert [s.seconds for s in at] == [1e-6, 2e-6] and not registry.seeds(task.at(16), target.identity)
        assert space.seeded(at, 32) == [legal]
        assert not registry.snapshot().kernels  # a seed is nothing that could serve


def test_the_commands_say_what_went_out_and_what_came_in(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    export.t4("last", tmp_path / "out", operator="linear", bucket="M=8", runs_dir=run.parent)
    assert "1 file" in capsys.readouterr().out
    (file,) = (tmp_path / "out").iterdir()
    bring_in.t4([file], as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["new_seeds"] == 10 and said["spaces"][0]["points"] == len(t4.read(file).results)
    bring_in.seeds(as_json=True)
    (first, *_) = json.loads(capsys.readouterr().out)
    assert first["measured_on"] == "host" and first["where"]["rows"] in (16, 32, 64) and first["at"] == {"M": 8}
    export.kernel_tuner("last", tmp_path / "caches", runs_dir=run.parent)
    assert len(list((tmp_path / "caches").iterdir())) == 3
    with pytest.raises(KforgeError, match="not an empty folder"):
        export.t4("last", tmp_path / "out", runs_dir=run.parent)
    with pytest.raises(KforgeError, match="nothing there; it tried"):
        export.t4("last", tmp_path / "other", bucket="M=77", runs_dir=run.parent)


_THEIRS = """
import json, sys
import jsonschema
from kernel_tuner import tune_cache, util
from kernel_tuner.file_utils import output_file_schema
caches, results = json.loads(sys.argv[1])
said = []
for path in caches:
    cache = util.read_cache(path, open_cache=False)
    failed = sum("__error__" in e for e in cache["cache"].values())
    found, env = tune_cache(path, strategy="brute_force", quiet=True, verbose=False)
    best = util.get_best_config(found, "time")
    said.append([len(cache["cache"]), failed, best["time"]])
schema = output_file_schema("results")[1]
for path in results:
    jsonschema.validate(json.load(open(path)), schema)
print(json.dumps(said))
"""


@pytest.mark.slow
def test_kernel_tuner_loads_our_caches_and_its_schema_takes_our_results(
    spaces: tuple[Recording, ...], tmp_path: Path
) -> None:
    """Its own package, in the environment that bench/search.py makes."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from peers import environments  # type: ignore[import-not-found]
        from peers.process import Refused  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(ROOT / "bench"))
    try:
        python = environments.install_kernel_tuner(Console(stderr=True))
    except Refused as why:
        pytest.skip(f"no Kernel Tuner: {why}")
    parts = [part for space in spaces for part in recordings.by_template(space)]
    caches = [written(tmp_path / f"c{i}.json", kernel_tuner.document(p)) for i, p in enumerate(parts)]
    results = [written(tmp_path / f"t{i}.json", t4.document(s)) for i, s in enumerate(spaces)]
    asked = json.dumps([list(map(str, caches)), list(map(str, results))])
    done = subprocess.run([python, "-c", _THEIRS, asked], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for part, (points, failed, best) in zip(parts, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert part.best and part.best.seconds
        assert (points, failed) == (len(part.results), len(part.failed))
        assert best == pytest.approx(part.best.seconds * 1e3)
