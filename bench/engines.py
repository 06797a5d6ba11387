"""Measures telecine inside vLLM: requests per second of its media loader, and the time up to a processor's output.

    .venv-vllm/bin/python bench/engines.py [--rounds 3] [--requests 24]
    .venv-vllm/bin/python bench/engines.py --device cuda --clip FILE.mp4 [--clip ...] [--seconds 6]

Run it in the environment of ``scripts/test vllm``. Frames are compared first. Then the contenders are measured
alternately, each in a new process, with vLLM's own ``VideoMediaIO`` in 8 loader threads, as in its server.

On the CPU the contenders have two cores. One clip after the other is also measured from bytes to
``pixel_values_videos``. On a GPU the contenders are telecine and those codecs of vLLM that decode there, with all
cores. One that cannot be used is left out, with the reason. Results go to results/engines-MACHINE.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
from cases import say  # noqa: E402
from engines_worker import LOADER_THREADS  # noqa: E402

_CORES = 2
_NUM_FRAMES = 32
_CODECS = ("opencv", "torchcodec", "telecine")
_TARGETS = {"opencv": 1.6, "torchcodec": 1.4}
"""Smallest allowed ratio of telecine's requests per second to theirs."""
_PIPELINES: dict[str, dict[str, Any]] = {
    "opencv": {"backend": "opencv"},
    "telecine": {"backend": "telecine"},
    "telecine, fused resize": {"backend": "telecine", "fit": "qwen3_vl"},
}
_SAMPLINGS: dict[str, dict[str, Any]] = {
    "32 frames": {"num_frames": _NUM_FRAMES},
    "2 frames a second": {"video_backend": "qwen3_vl"},
}
"""vLLM's general sampling rule, and the model's own."""
_PIPELINE_TARGET = 2.0
_CLIPS = 3
_FEWER_THREADS = {f"telecine, {count} of {LOADER_THREADS} threads": count for count in (4, 1)}
"""Telecine with fewer threads, which leave video engines idle: its processor time at the throughput of the others."""
_OURS = {"telecine": "telecine"} | {f"telecine_with_{count}_threads": name for name, count in _FEWER_THREADS.items()}
"""The contenders that the others are compared with, by the name of the comparison in the results."""
_GPU_CODECS: dict[str, dict[str, Any]] = {
    "telecine": {"backend": "telecine", "device": "cuda"},
    **{name: {"backend": "telecine", "device": "cuda"} for name in _FEWER_THREADS},
    "pynvvideocodec": {"backend": "pynvvideocodec"},
    "pynvvideocodec, 8 decoders": {"backend": "pynvvideocodec", "hw_decoders": 8},
    "deepstream": {"backend": "deepstream"},
}
"""Codecs with vLLM's default options. PyNvVideoCodec decodes two clips at a time by default, so 8 are tested too."""
_GPU_NUM_FRAMES = (8, _NUM_FRAMES)
_GPU_TARGET, _GPU_CORES_TARGET = 1.8, 0.5
"""Smallest allowed ratio of requests per second, and largest allowed ratio of cores, telecine to the others."""
_HANG_SECONDS = 150.0
"""Seconds, in addition to the measurement, after which a contender on a GPU counts as hanging."""


class _Unusable(Exception):
    """A contender fails on this machine; the message has the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24, help="requests to the loader on the CPU in each round")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="duration of each contender on the GPU in each round"
    )
    parser.add_argument("--clip", type=Path, action="append", help="a video to use instead of 13 s of 1080p H.264")
    parser.add_argument(
        "--codec", action="append", choices=_GPU_CODECS, help="only this contender on the GPU; may be repeated"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(argv)
    clips = arguments.clip or [cases.make(cases.CASES[0])]
    if arguments.device == "cpu" and len(clips) > 1:
        parser.error("the CPU is measured with one clip")
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "python": platform.python_version()},
        "versions": _run({"job": "versions"}, cores=None),
        "loader_threads": LOADER_THREADS,
        "rounds": arguments.rounds,
    }
    if arguments.device == "cpu":
        save = partial(_save, document, arguments.output or HERE / "results" / f"engines-{platform.machine()}.json")
        document["clip"] = arguments.clip[0].name if arguments.clip else cases.CASES[0].recipe
        table = _on_cpu(document, clips[0], arguments)
    else:
        document["machine"] |= _run({"job": "gpu"}, cores=None) | {"cores": len(os.sched_getaffinity(0))}
        name = document["machine"]["gpu"].split()[-1].lower()
        save = partial(_save, document, arguments.output or HERE / "results" / f"engines-{name}.json")
        table = _on_gpu(document, clips, arguments, save)
    save()
    for line in table:
        print(line)
    return 0


def _save(document: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")


def _run(job: dict[str, Any], cores: int | None = _CORES, timeout: float | None = None) -> Any:
    """Run a job in a new process on this number of cores.

    Raises:
        _Unusable: it failed, or was not done in time.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "engines_worker.py"), json.dumps(job)],
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"no answer within {timeout:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        say(f"{job}:")
        say("\n".join(lines[-40:]))
        raise _Unusable(lines[-1] if lines else f"the process ended with {done.returncode}")
    return json.loads(done.stdout)


def _on_cpu(document: dict[str, Any], clip: Path, arguments: argparse.Namespace) -> list[str]:
    document["machine"]["cores_used"] = _CORES
    document |= {"num_frames": _NUM_FRAMES, "load_average": os.getloadavg()[1]}
    asked = {"clip": str(clip), "num_frames": _NUM_FRAMES}
    document["frames"] = _run({"job": "same_frames", "codecs": _CODECS} | asked)
    say(f"frames: {document['frames']}")
    loads: dict[str, list[dict[str, Any]]] = {codec: [] for codec in _CODECS}
    pipelines: dict[str, dict[str, list[dict[str, Any]]]] = {
        rule: {name: [] for name in _PIPELINES} for rule in _SAMPLINGS
    }
    for _ in range(arguments.rounds):
        for codec in _CODECS:
            loads[codec].append(_run({"job": "load_on_cpu", "codec": codec, "requests": arguments.requests} | asked))
            say(f"{codec}: {loads[codec][-1]}")
        for rule, sampling in _SAMPLINGS.items():
            for name, options in _PIPELINES.items():
                job = {"job": "pipeline", "clip": str(clip), "options": options, "plain": _PIPELINES["opencv"]}
                pipelines[rule][name].append(_run(job | {"sampling": sampling, "clips": _CLIPS}))
                say(f"{rule}, {name}: {pipelines[rule][name][-1]}")
    document["loader"] = _loader_rows(loads)
    document["processor"] = {rule: _pipeline_rows(runs) for rule, runs in pipelines.items()}
    return _cpu_table(document)


def _on_gpu(
    document: dict[str, Any], clips: list[Path], arguments: argparse.Namespace, save: Callable[[], object]
) -> list[str]:
    """Compare the frames of each contender, then measure. One that fails on a clip is left out for that clip."""
    asked = [{"clip": str(clip), "num_frames": count} for clip in clips for count in _GPU_NUM_FRAMES]
    cases: list[dict[str, Any]] = [
        {"clip": Path(case["clip"]).name, "num_frames": case["num_frames"], "frames": {}, "left_out": {}}
        for case in asked
    ]
    runs: list[dict[str, list[dict[str, Any]]]] = [{} for _ in asked]

    def ask(name: str, job: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Return the answer for each case from which the contender is not left out."""
        numbers = [number for number, case in enumerate(cases) if name not in case["left_out"]]
        if not numbers:
            return []
        job = job | {"options": _GPU_CODECS[name], "cases": [asked[number] for number in numbers]}
        try:
            answers = _run(job, None, _HANG_SECONDS + arguments.seconds * len(numbers))
        except _Unusable as error:
            answers = [{"failed": str(error)} for _ in numbers]
        for number, answer in zip(numbers, answers, strict=True):
            say(f"{asked[number]}, {name}: {answer}")
            if "failed" in answer:
                cases[number]["left_out"][name] = answer["failed"]
                runs[number].pop(name, None)
        return [pair for pair in zip(numbers, answers, strict=True) if "failed" not in pair[1]]

    names = arguments.codec or list(_GPU_CODECS)
    for name in names:
        for number, answer in ask(name, {"job": "right_frames"}):
            cases[number]["frames"][name] = answer
            runs[number][name] = []
    document |= {"seconds": arguments.seconds, "cases": cases}
    for _ in range(arguments.rounds):
        for name in names:
            threads = _FEWER_THREADS.get(name, LOADER_THREADS)
            job = {"job": "load_on_gpu", "seconds": arguments.seconds, "threads": threads}
            for number, answer in ask(name, job):
                runs[number][name].append(answer)
        for case, found in zip(cases, runs, strict=True):
            case["loader"] = _gpu_rows(found)
        save()  # time on such a machine may end
    return _gpu_table(document)


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: round(_median(runs, key), 3) for key in runs[0]} | {"runs": runs}


def _ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str) -> float:
    """Return the median over the rounds of the ratio within a round."""
    return round(statistics.median(a[key] / b[key] for a, b in zip(ours, theirs, strict=True)), 2)


def _loader_rows(loads: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = {codec: _summary(runs) for codec, runs in loads.items()}
    for codec, target in _TARGETS.items():
        rows[codec] |= {
            "telecine_is_faster_by": _ratio(loads["telecine"], loads[codec], "requests_per_second"),
            "telecine_takes_less_cpu_by": _ratio(loads[codec], loads["telecine"], "cpu_seconds_per_request"),
            "target": target,
        }
    return rows


def _pipeline_rows(pipelines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = {
        name: {key: round(_median(runs, key), 4) for key in runs[0] if key != "grid_thw"}
        | {"grid_thw": runs[0]["grid_thw"], "runs": [run["seconds"] for run in runs]}
        for name, runs in pipelines.items()
    }
    for name, runs in pipelines.items():
        for key in ("seconds", "cpu_seconds"):
            rows[name][f"less_{key}_than_opencv_by"] = _ratio(pipelines["opencv"], runs, key)
    rows["telecine, fused resize"]["target"] = _PIPELINE_TARGET
    return rows


def _gpu_rows(loads: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = {name: _summary(runs) for name, runs in loads.items()}
    for name in rows.keys() - _OURS.values():
        for key, own in _OURS.items():
            if own in rows:
                rows[name] |= {
                    f"{key}_is_faster_by": _ratio(loads[own], loads[name], "requests_per_second"),
                    f"{key}_takes_of_its_cores": _ratio(loads[own], loads[name], "cores"),
                    f"{key}_takes_of_its_cpu_a_request": _ratio(loads[own], loads[name], "cpu_seconds_per_request"),
                }
        rows[name] |= {"target": _GPU_TARGET, "cores_target": _GPU_CORES_TARGET}
    return rows


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _cpu_table(document: dict[str, Any]) -> list[str]:
    lines = [
        "| codec | requests/s | telecine is faster by | CPU s per request | telecine takes less by | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for codec, row in document["loader"].items():
        lines.append(
            f"| {codec} | {row['requests_per_second']:.2f} | {row.get('telecine_is_faster_by', '')} "
            f"| {row['cpu_seconds_per_request']:.2f} | {row.get('telecine_takes_less_cpu_by', '')} "
            f"| {row['peak_megabytes']:.0f} |"
        )
    for rule, rows in document["processor"].items():
        lines += [
            "",
            f"| {rule}, to pixel_values_videos | s | less by | CPU s | less by | mean difference, levels | largest |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, row in rows.items():
            lines.append(
                f"| {name} | {row['seconds']:.2f} | {row['less_seconds_than_opencv_by']} | {row['cpu_seconds']:.2f} "
                f"| {row['less_cpu_seconds_than_opencv_by']} | {row['mean_levels']:.2f} | {row['largest_levels']:.0f} |"
            )
    return lines


def _gpu_table(document: dict[str, Any]) -> list[str]:
    lines = [
        "| clip | frames | codec | requests/s | cores | GPU MB | worst PSNR "
        "| telecine is faster by, and takes of its cores; with fewer threads |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in document["cases"]:
        for name, row in case["loader"].items():
            ratios = [
                f"{row[f'{key}_is_faster_by']}, {row[f'{key}_takes_of_its_cores']}"
                for key in _OURS
                if f"{key}_is_faster_by" in row
            ]
            lines.append(
                f"| {case['clip']} | {case['num_frames']} | {name} | {row['requests_per_second']:.1f} "
                f"| {row['cores']:.2f} | {row['gpu_megabytes']:.0f} | {case['frames'][name]['worst_psnr']} "
                f"| {'; '.join(ratios)} |"
            )
        lines += [
            f"{case['clip']}, {case['num_frames']} frames: {name} is left out: {reason}"
            for name, reason in case["left_out"].items()
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
