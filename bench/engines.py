"""Measures telecine inside vLLM: requests per second of its media loader, and the way to a model processor's output.

    .venv-vllm/bin/python bench/engines.py [--rounds 3] [--requests 24]

It runs in the environment of ``scripts/test vllm``. The frames are compared first. Then each contender gets a fresh
process on two cores, in turns, round after round: vLLM's own ``VideoMediaIO`` in 8 loader threads, as its server has
them, and one clip after the other from bytes to ``pixel_values_videos``. The result goes to
results/engines-MACHINE.json.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "tests" / "integrations")]

import cases  # noqa: E402
from cases import say  # noqa: E402

_CORES = 2
_LOADER_THREADS = 8
_NUM_FRAMES = 32
_CODECS = ("opencv", "torchcodec", "telecine")
_TARGETS = {"opencv": 1.6, "torchcodec": 1.4}
"""Least good ratio of telecine's requests per second to theirs."""
_PIPELINES: dict[str, dict[str, Any]] = {
    "opencv": {"backend": "opencv"},
    "telecine": {"backend": "telecine"},
    "telecine, fused resize": {"backend": "telecine", "fit": "qwen3_vl"},
}
_PIPELINE_TARGET = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24, help="to the loader, each round")
    parser.add_argument("--clip", type=Path, help="a video, in place of 13 s of 1080p H.264 made by the recipe")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        job = json.loads(arguments.worker)
        sys.stdout.write(json.dumps(_JOBS[job.pop("job")](**job)))
        return 0
    case = cases.CASES[0]
    clip = arguments.clip or cases.make(case)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "cores_used": _CORES, "python": platform.python_version()},
        "clip": arguments.clip.name if arguments.clip else case.recipe,
        "num_frames": _NUM_FRAMES,
        "loader_threads": _LOADER_THREADS,
        "rounds": arguments.rounds,
        "load_average": os.getloadavg()[1],
        "frames": _run(job="compare", clip=str(clip)),
    }
    say(f"frames: {document['frames']}")
    loads = {codec: [] for codec in _CODECS}
    pipelines: dict[str, list[dict[str, float]]] = {name: [] for name in _PIPELINES}
    for _ in range(arguments.rounds):
        for codec in _CODECS:
            loads[codec].append(_run(job="load", clip=str(clip), codec=codec, requests=arguments.requests))
            say(f"{codec}: {loads[codec][-1]}")
        for name in _PIPELINES:
            pipelines[name].append(_run(job="pipeline", clip=str(clip), name=name))
            say(f"{name}: {pipelines[name][-1]}")
    document["versions"] = _run(job="versions")
    document["loader"] = _loader_rows(loads)
    document["processor"] = _pipeline_rows(pipelines)
    output = arguments.output or HERE / "results" / f"engines-{platform.machine()}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")
    for line in _table(document):
        print(line)
    return 0


def _run(**job: Any) -> Any:
    """Do a job in a process of its own, on as many cores as are measured."""
    cores = sorted(os.sched_getaffinity(0))[:_CORES]
    done = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(job)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    return json.loads(done.stdout)


def _media_io(**kwargs: Any) -> Any:
    with contextlib.redirect_stdout(sys.stderr):
        import torchvision_on_cpu

        torchvision_on_cpu.prepare()
        from telecine.integrations.vllm import register

        register()
        from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

        return VideoMediaIO(ImageMediaIO(), **kwargs)


def _compare(clip: str) -> dict[str, Any]:
    import numpy as np

    data = Path(clip).read_bytes()
    found = {codec: _media_io(num_frames=_NUM_FRAMES, backend=codec).load_bytes(data).media for codec in _CODECS}
    reference, told = found["opencv"]
    answer = {}
    for codec, (frames, metadata) in found.items():
        difference = np.abs(np.asarray(frames).astype(np.int16) - reference)
        answer[codec] = {
            "same_indices": metadata["frames_indices"] == told["frames_indices"],
            "largest_difference": int(difference.max()),
            "mean_difference": round(float(difference.mean()), 4),
        }
    return answer


def _load(clip: str, codec: str, requests: int) -> dict[str, float]:
    data = Path(clip).read_bytes()
    media_io = _media_io(num_frames=_NUM_FRAMES, backend=codec)
    media_io.load_bytes(data)
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    with ThreadPoolExecutor(_LOADER_THREADS) as pool:
        started, cpu = time.perf_counter(), time.process_time()
        # the result is dropped at once: what is measured is what decoding holds
        for done in [pool.submit(lambda: media_io.load_bytes(data) and None) for _ in range(requests)]:
            done.result()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "requests_per_second": requests / seconds,
        "cpu_seconds_per_request": cpu / requests,
        "peak_megabytes": (_resident("VmHWM") - before) / 1e6,
    }


def _resident(which: str = "VmRSS") -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return float(line.split()[1]) * 1024


def _pipeline(clip: str, name: str, clips: int = 3) -> dict[str, Any]:
    """From bytes to the output of Qwen3-VL's video processor, as a server does it with the model's own budget."""
    import numpy as np

    data = Path(clip).read_bytes()
    media_io = _media_io(video_backend="qwen3_vl", **_PIPELINES[name])
    plain = _media_io(video_backend="qwen3_vl", **_PIPELINES["opencv"])
    processor = _processor()

    def once(loader: Any) -> Any:
        frames, metadata = loader.load_bytes(data).media
        metadata = {key: value for key, value in metadata.items() if key != "do_sample_frames"}
        return processor(
            videos=[frames], video_metadata=[metadata], do_sample_frames=False, return_tensors="pt", device="cpu"
        )

    values, reference = once(media_io), once(plain)
    assert values["video_grid_thw"].tolist() == reference["video_grid_thw"].tolist()
    difference = (values["pixel_values_videos"] - reference["pixel_values_videos"]).abs().numpy()
    seconds, cpu = [], time.process_time()
    for _ in range(clips):
        started = time.perf_counter()
        once(media_io)
        seconds.append(time.perf_counter() - started)
    cpu = (time.process_time() - cpu) / clips
    # the values are normalised with mean 0.5 and deviation 0.5: one level of 8 bits is 2 / 255
    levels = difference * 127.5
    return {
        "seconds": statistics.median(seconds),
        "cpu_seconds": cpu,
        "grid_thw": values["video_grid_thw"][0].tolist(),
        "mean_levels": float(levels.mean()),
        "p99_levels": float(np.quantile(levels[:: max(1, len(levels) // 2000)], 0.99)),
        "largest_levels": float(levels.max()),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def _processor() -> Any:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    # the budget of the released checkpoints; the class's own default is that of a toy
    return Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25_165_824}, cap_pixels_per_frame=False)


def _versions() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("vllm", "transformers", "torch", "torchcodec", "av", "numpy")}


_JOBS = {"compare": _compare, "load": _load, "pipeline": _pipeline, "versions": _versions}


def _median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def _loader_rows(loads: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    rows: dict[str, Any] = {
        codec: {key: round(_median(runs, key), 3) for key in runs[0]} | {"runs": runs} for codec, runs in loads.items()
    }
    for codec, target in _TARGETS.items():
        ratios = [
            ours["requests_per_second"] / theirs["requests_per_second"]
            for ours, theirs in zip(loads["telecine"], loads[codec], strict=True)
        ]
        less = [
            theirs["cpu_seconds_per_request"] / ours["cpu_seconds_per_request"]
            for ours, theirs in zip(loads["telecine"], loads[codec], strict=True)
        ]
        rows[codec] |= {
            "telecine_is_faster_by": round(statistics.median(ratios), 2),
            "telecine_takes_less_cpu_by": round(statistics.median(less), 2),
            "target": target,
        }
    return rows


def _pipeline_rows(pipelines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = {
        name: {key: round(_median(runs, key), 4) for key in runs[0] if key != "grid_thw"}
        | {"grid_thw": runs[0]["grid_thw"]}
        for name, runs in pipelines.items()
    }
    for name in pipelines:
        for key in ("seconds", "cpu_seconds"):
            ratios = [a[key] / b[key] for a, b in zip(pipelines["opencv"], pipelines[name], strict=True)]
            rows[name][f"less_{key}_than_opencv_by"] = round(statistics.median(ratios), 2)
    rows["telecine, fused resize"]["target"] = _PIPELINE_TARGET
    return rows


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _table(document: dict[str, Any]) -> list[str]:
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
    lines += [
        "",
        "| to pixel_values_videos | s | less by | CPU s | less by | mean difference, levels | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in document["processor"].items():
        lines.append(
            f"| {name} | {row['seconds']:.2f} | {row['less_seconds_than_opencv_by']} | {row['cpu_seconds']:.2f} "
            f"| {row['less_cpu_seconds_than_opencv_by']} | {row['mean_levels']:.2f} | {row['largest_levels']:.0f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
