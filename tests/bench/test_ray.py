"""A bench on a Ray cluster: the results of one machine, whoever dies on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import purge
from purge.bench import runner
from purge.bench.jobs import read_plan
from purge.bench.models import Place
from purge.bench.on_ray import Seat
from purge.bench.schema import Resources
from purge.bench.workers import KILLED, THREADS, Done, WorkItem, each, workers_on
from tests.bench.plans import processes_of, until

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen in /proc"),
]
TINY = {
    "data": "digits", "model": "small-resnet", "per_class": 10, "recipe": {"epochs": 1}, "forget": [0, 1],
    "retrains": 1, "metrics": ["fa_test", "mia"], "tables": [{"name": "t", "columns": ["fa_test"]}],
    "methods": ["finetune", "purge", {"method": "sisa", "base": {"shards": 2}}],
}  # fmt: skip
JOBS, MODELS = 6, 4
SECONDS = {
    "seconds", "first_seconds", "retrain_seconds", "speedup", "spent_seconds", "wall_seconds", "at_once",
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="module")
def plain(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the same bench in this process."""
    out = tmp_path_factory.mktemp("plain") / "out"
    done = runner.bench(read_plan(config), Place(out, out / "models", commit="x"), progress=False)
    assert (done.ran, done.trained, done.failed) == (JOBS, MODELS, {})
    return out


def command(config: Path, out: Path, *more: str) -> list[str]:
    argv = [sys.executable, "-m", "purge", "bench", str(config), "--out", str(out)]
    return [*argv, "--json", "--quiet", *more]


def results(out: Path) -> dict[str, Any]:
    """All that must be equal: everything but seconds, digests of weights included."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in SECONDS}
        return [*map(plain, value)] if isinstance(value, list) else value

    return {file.name: plain(json.loads(file.read_text())) for file in (out / "jobs").glob("*.json")}


def weights(models: Path) -> dict[str, str]:
    return {f.parent.name: json.loads(f.read_text())["digest"] for f in models.glob("*/run.json")}


def working(session: int) -> list[str]:
    """Those that end with the bench at once: after a SIGKILL, agents of Ray take a minute to notice."""
    return [name for _, name in processes_of(session) if not re.match(r"ray::\w+Agent", name)]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a bench in a session of its own; whatever is left of it at the end is killed."""
    benches: list[subprocess.Popen[str]] = []

    def start(argv: list[str]) -> subprocess.Popen[str]:
        env = {**os.environ, "PURGE_COMMIT": "x"}
        pipe = subprocess.PIPE
        benches.append(
            subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=env)
        )
        return benches[-1]

    yield start
    for bench in benches:
        for pid, _ in processes_of(bench.pid):
            os.kill(pid, signal.SIGKILL)
        bench.communicate()


def test_interrupted_killed_and_robbed_of_a_worker(
    config: Path, plain: Path, tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ctrl-C, then SIGKILL, then a worker is killed: --resume goes on every time, to the same bits."""
    out, resumed = tmp_path / "out", 0

    def files() -> int:
        return len([*out.glob("jobs/*.json")])

    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        bench = started(command(config, out, "--on", "ray", "--jobs", "2", *["--resume"] * resumed))
        resumed = 1
        before = files()
        assert until(lambda: files() > before or bench.poll() is not None, 200)  # noqa: B023
        os.killpg(bench.pid, number) if number == signal.SIGINT else bench.kill()
        stdout, stderr = bench.communicate(timeout=60)
        assert bench.returncode == code, stderr
        assert stdout == ""
        if code > 0:
            assert stderr.startswith("Interrupted by SIGINT. ")
            assert stderr.endswith(f"jobs are done in {out}; --resume runs the rest.\n")
            assert len(stderr.splitlines()) == 1
        assert until(lambda: not working(bench.pid), 30)  # noqa: B023
        assert 0 < files() < JOBS
    bench = started(command(config, out, "--on", "ray", "--jobs", "2", "--resume"))

    def busy() -> list[int]:
        return [pid for pid, name in processes_of(bench.pid) if name.startswith("ray::Seat.do")]

    victims = until(busy, 200)
    os.kill(victims[0], signal.SIGKILL)
    stdout, stderr = bench.communicate(timeout=200)
    assert (bench.returncode, stderr) == (0, "")
    assert json.loads(stdout)["failed"] == {}
    assert until(lambda: not processes_of(bench.pid), 30)
    assert results(out) == results(plain)
    assert weights(out / "models") == weights(plain / "models")


# -- one cluster for what its workers do ------------------------------------------------------


def deadly(what: str, folder: Path) -> Done:
    """Dies at the first attempt, at every one, or never."""
    with (folder / what).open("a") as file:
        file.write("x")
    if what == "killer" or (what == "fragile" and (folder / what).stat().st_size == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return about(what)


def about(what: Any) -> Done:
    variables = {name: os.environ.get(name) for name in THREADS}
    return Done(what, "", (os.getpid(), os.getcwd(), torch.get_num_threads(), variables, sys.path))


def test_workers_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """A killed worker's item is tried once more; all have the same threads, and the path of this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the current folder was imported')")
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    with workers_on("ray", 2, 10, Resources(cpus=3), None) as workers:
        items = [
            WorkItem("fragile", "a"),
            WorkItem("killer", "b"),
            *(WorkItem(name, "d") for name in ("x", "y", "z")),
        ]
        done = {d.what: d for d in each(workers, partial(deadly, folder=tmp_path), items)}
        again = [*each(workers, about, [WorkItem(i, str(i)) for i in range(4)])]
        assert signal.getsignal(signal.SIGTERM) is handler
    assert len(workers) == 2
    assert done["killer"] == Done("killer", KILLED, killed=True)
    assert {name: (tmp_path / name).stat().st_size for name in ("killer", "fragile", "x")} == {
        "killer": 2, "fragile": 2, "x": 1,
    }  # fmt: skip
    for one in [*(done[name] for name in ("fragile", "x", "y", "z")), *again]:
        pid, folder, threads, variables, path = one.result
        assert (one.error, pid != os.getpid(), folder, threads) == ("", True, str(tmp_path), 3)
        assert set(variables.values()) == {"3"}
        assert path == sys.path
    assert dict(os.environ) == environment
    assert capfd.readouterr() == ("", "")


def test_two_nodes_and_a_folder_of_models(
    config: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster that is there, models are trained once, in the folder where other benches find them."""
    from ray.cluster_utils import Cluster

    names = {"RAY_AUTH_MODE": "disabled", "PURGE_COMMIT": "x", "PURGE_CACHE": str(tmp_path / "cache")}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    shared, out = tmp_path / "shared", tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        more = ("--on", f"ray:{cluster.address}", "--models", str(shared), "--only", "finetune")
        argv = command(config, out, *more, "--only", "sisa")
        bench = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    finally:
        cluster.shutdown()
    assert (bench.returncode, bench.stderr) == (0, "")
    assert json.loads(bench.stdout)["trained"] == MODELS
    assert weights(shared) == weights(plain / "models")

    monkeypatch.setattr("purge.bench.models.train_run", None)
    plan = read_plan(config)
    done = runner.bench(plan, runner.locate(plan, out, shared, None, None), resume=True, progress=False)
    assert (done.ran, done.trained, done.failed) == (2, 0, {})
    assert results(out) == results(plain)
    assert not [*out.glob("models/*")]


# -- refusals ---------------------------------------------------------------------------------


def test_an_address_at_which_nobody_answers(config: Path, tmp_path: Path) -> None:
    argv = command(config, tmp_path / "out", "--on", "ray:127.0.0.1:1")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: Expected a Ray cluster at 127.0.0.1:1, got ConnectionRefusedError")
    assert " Fix: " in line
    assert not [*tmp_path.iterdir()]


def test_a_node_with_another_version_or_without_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected purge 0\.0 on"):
        Seat(1, [], "").started("0.0", "cpu")
    with pytest.raises(ValueError, match=r"Expected a device that is here .* got 'cuda:99'"):
        Seat(1, [], "").started(purge.__version__, "cuda:99")
