"""The command ``telecine bench``."""

from __future__ import annotations

import importlib
import json

import pytest

from support.clips import CLIPS
from telecine import OptionsError, Pool
from telecine.cli.bench import measure
from telecine.cli.main import main


@pytest.fixture
def path():
    return str(CLIPS["base.mp4"].path())


def test_bench_measures_consistent_rates_and_latencies(path):
    with Pool(threads=2, cache=0) as pool:
        one = measure(pool, [path], 4, 0.3, {"num_frames": 2})
    assert one.requests >= 4 and one.concurrency == 4
    assert 0 < one.p50_seconds <= one.p99_seconds
    assert one.cores_busy == pytest.approx(one.cpu_seconds_per_clip * one.clips_per_second, rel=1e-6)
    assert one.peak_mb is None or one.peak_mb > 10


def test_bench_runs_all_concurrent_requests_even_if_the_time_is_short(path):
    with Pool(threads=1, cache=0) as pool:
        assert measure(pool, [path], 6, 1e-9, {"num_frames": 1}).requests == 6


def test_bench_prints_a_table_or_json(path, capsys):
    assert main(["bench", path, "--concurrency", "1,3", "--seconds", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and [line.split()[0] for line in lines[1:]] == ["1", "3"]
    assert main(["bench", path, "--concurrency", "2", "--seconds", "0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["results"][0]["concurrency"] == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["/no/such.mp4"], 3),
        (["x", "--concurrency", "0"], 2),
        (["x", "--seconds", "nan"], OptionsError.exit_code),
        (["x", "--backend", "nothing"], 2),
    ],
)
def test_bench_returns_the_exit_code_of_wrong_usage_or_a_bad_file(arguments, code, capsys):
    assert main(["bench", *arguments]) == code
    assert capsys.readouterr().out == ""


def test_bench_prints_a_url_without_password_and_query(path, capsys, monkeypatch):
    module = importlib.import_module("telecine.cli.bench")
    real = module.measure
    monkeypatch.setattr(module, "measure", lambda pool, files, *rest: real(pool, [path], *rest))
    assert main(["bench", "https://me:secret@h.example/v.mp4?token=abc", "--seconds", "0.1", "--json"]) == 0
    printed = capsys.readouterr().out
    assert "secret" not in printed and "abc" not in printed and "v.mp4" in printed
