"""The jobs of bench/engines.py. Each runs in a new process; it reads one JSON object and writes one."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import statistics
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

LOADER_THREADS = 8
"""Number of loader threads of vLLM's server by default."""
_PACKAGES = (
    "vllm", "transformers", "torch", "torchcodec", "av", "numpy", "opencv-python-headless", "PyNvVideoCodec",
    "nvidia-deepstream-videodecode-cu13",
)  # fmt: skip
_NEIGHBOURS = 2
"""A frame is compared with its neighbours up to this distance."""


def media_io(**kwargs: Any) -> Any:
    """Return vLLM's own loader with these options, after registering telecine's plugin."""
    with contextlib.redirect_stdout(sys.stderr):
        from support import torchvision_on_cpu

        torchvision_on_cpu.prepare()
        _without_kernels()
        from telecine.integrations.vllm import register

        register()
        from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

        return VideoMediaIO(ImageMediaIO(), **kwargs)


def _without_kernels() -> None:
    """Make a vLLM without its compiled kernels importable on a machine with a GPU, where it would look for them.

    Loading a video uses none of them.
    """
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    if find_spec("vllm._C_stable_libtorch") is None:
        vllm.platforms._current_platform = UnspecifiedPlatform()


def each_different(data: bytes) -> Iterator[bytes]:
    """Yield the same video repeatedly, each time with other bytes, so that no cache has it."""
    for number in itertools.count():
        # a box at the end that every reader of MP4 skips
        yield data + struct.pack(">I4sQ", 16, b"free", number) if data[4:8] == b"ftyp" else data


def same_frames(clip: str, codecs: list[str], num_frames: int) -> dict[str, Any]:
    """Return the differences of each codec's frames from those of the first codec."""
    import numpy as np

    data = Path(clip).read_bytes()
    found = {codec: media_io(num_frames=num_frames, backend=codec).load_bytes(data).media for codec in codecs}
    reference, expected = found[codecs[0]]
    answer = {}
    for codec, (frames, answered) in found.items():
        difference = np.abs(np.asarray(frames).astype(np.int16) - reference)
        answer[codec] = {
            "same_indices": answered["frames_indices"] == expected["frames_indices"],
            "largest_difference": int(difference.max()),
            "mean_difference": round(float(difference.mean()), 4),
        }
    return answer


def _each(cases: list[dict[str, Any]], do: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answer of ``do`` for each case, or the reason why it failed."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        try:
            rows.append(do(**case))
        except Exception as error:
            traceback.print_exc()
            rows.append({"failed": _reason(error)})
    return rows


def _reason(error: BaseException | None) -> str:
    """Return the message of an error, followed by those of its causes."""
    messages = []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "; because of ".join(messages)


def right_frames(cases: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the frames of a codec with those of telecine on the CPU; the codec may convert colours differently."""
    import numpy as np

    import telecine

    def look(clip: str, num_frames: int) -> dict[str, Any]:
        data = Path(clip).read_bytes()
        frames, answered = media_io(num_frames=num_frames, **options).load_bytes(data).media
        _, wanted = media_io(num_frames=num_frames, backend="telecine", device="cpu").load_bytes(data).media
        indices = answered["frames_indices"]
        reference = telecine.load(data, indices=indices, device="cpu").data
        difference = np.abs(np.asarray(frames).astype(np.int16) - reference)
        errors = [float(np.mean(np.square(each, dtype=np.float32))) for each in difference]
        return {
            "same_indices": indices == wanted["frames_indices"],
            "frames": len(frames),
            "frames_of_another_index": _count_misplaced(data, np.asarray(frames), indices),
            "largest_difference": int(difference.max()),
            "worst_psnr": round(min(99.0 if not error else 10 * math.log10(255**2 / error) for error in errors), 2),
        }

    return _each(cases, look)


def _count_misplaced(data: bytes, frames: Any, indices: list[int]) -> int:
    """Return how many frames are clearly more like a neighbour than like the frame of their index."""
    import cv2
    import numpy as np

    import telecine

    last = telecine.probe(data).num_frames - 1
    near = {index: range(max(0, index - _NEIGHBOURS), min(last, index + _NEIGHBOURS) + 1) for index in indices}
    names = sorted(set(itertools.chain.from_iterable(near.values())))
    small = telecine.load(data, indices=names, size=(frames.shape[1] // 4, frames.shape[2] // 4), device="cpu").data

    def look(picture: Any) -> Any:
        gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        gray = cv2.resize(gray, (160, 90), interpolation=cv2.INTER_AREA).astype(np.float32)
        return gray - gray.mean()  # other colour conversions may be lighter or darker

    looks = dict(zip(names, map(look, small), strict=True))
    misplaced = 0
    for frame, index in zip(frames, indices, strict=True):
        seen = look(cv2.resize(frame, small.shape[2:0:-1], interpolation=cv2.INTER_AREA))
        distance = {name: float(np.abs(seen - looks[name]).mean()) for name in near[index]}
        misplaced += distance[index] > min(distance.values()) + 0.02
    return misplaced


def load_on_cpu(clip: str, codec: str, num_frames: int, requests: int) -> dict[str, float]:
    """Measure a number of requests in vLLM's loader threads."""
    different = each_different(Path(clip).read_bytes())
    loader = media_io(num_frames=num_frames, backend=codec)
    loader.load_bytes(next(different))
    clips = [next(different) for _ in range(requests)]
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    with ThreadPoolExecutor(LOADER_THREADS) as pool:
        started, cpu = time.perf_counter(), time.process_time()
        # the result is dropped at once, so that only the memory of decoding is measured
        for done in [pool.submit(lambda data: loader.load_bytes(data) and None, data) for data in clips]:
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


def load_on_gpu(
    cases: list[dict[str, Any]], options: dict[str, Any], seconds: float, threads: int
) -> list[dict[str, Any]]:
    """Measure the throughput of a number of loader threads while all of them are busy."""

    def measure(clip: str, num_frames: int) -> dict[str, float]:
        different = each_different(Path(clip).read_bytes())
        loader = media_io(num_frames=num_frames, **options)
        loader.load_bytes(next(different))
        return _throughput(loader, different, seconds, threads)

    return _each(cases, measure)


def _throughput(loader: Any, different: Iterator[bytes], seconds: float, count: int) -> dict[str, float]:
    """Measure between the first and the last requests, when no engine is idle.

    Threads that started together stay in step for a long time, so only whole rounds of all threads are counted.
    """
    finished: list[tuple[float, float]] = []  # time of the end, and processor time used until then
    failures: list[Exception] = []
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                with lock:
                    data = next(different)
                loader.load_bytes(data)
                with lock:
                    finished.append((time.perf_counter(), _processor_seconds()))
        except Exception as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    memory = _gpu_memory_at_first(lambda: stop.is_set() or len(finished) >= count)
    first = len(finished)
    stop.wait(seconds)
    while len(finished) <= first + count and not stop.wait(0.05):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    whole = (len(finished) - 1 - first) // count * count
    (begun, busy_before), (ended, busy_after) = finished[first], finished[first + whole]
    return {
        "requests_per_second": whole / (ended - begun),
        "cores": (busy_after - busy_before) / (ended - begun),
        "cpu_seconds_per_request": (busy_after - busy_before) / whole,
        "gpu_megabytes": memory / 1e6,
    }


def _gpu_memory_at_first(enough: Callable[[], bool]) -> int:
    """Return the peak of the bytes in use on the GPU by all processes, until ``enough`` is true, for at least a second.

    Polling takes processor time, so it ends before that is measured.
    """
    import torch

    most, until = 0, time.perf_counter() + 1.0
    while time.perf_counter() < until or not enough():
        free, total = torch.cuda.mem_get_info(0)
        most = max(most, total - free)
        time.sleep(0.02)
    return most


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pipeline(
    clip: str, options: dict[str, Any], plain: dict[str, Any], sampling: dict[str, Any], clips: int
) -> dict[str, Any]:
    """Measure from bytes to the output of Qwen3-VL's video processor, with the model's own pixel budget."""
    import numpy as np

    different = each_different(Path(clip).read_bytes())
    loader, reference_loader = media_io(**sampling, **options), media_io(**sampling, **plain)
    processor = _processor()
    from vllm.utils.torch_utils import set_default_torch_num_threads

    def once(loader: Any, data: bytes) -> tuple[Any, float, float]:
        started = time.perf_counter()
        frames, facts = loader.load_bytes(data).media
        loaded = time.perf_counter()
        facts = {key: value for key, value in facts.items() if key != "do_sample_frames"}
        # as in vLLM's renderer: one thread, unless OMP_NUM_THREADS is set
        with set_default_torch_num_threads():
            values = processor(
                videos=[frames], video_metadata=[facts], do_sample_frames=False, return_tensors="pt", device="cpu"
            )
        return values, loaded - started, time.perf_counter() - loaded

    values, reference = once(loader, next(different))[0], once(reference_loader, next(different))[0]
    assert values["video_grid_thw"].tolist() == reference["video_grid_thw"].tolist()
    difference = (values["pixel_values_videos"] - reference["pixel_values_videos"]).abs().numpy()
    grid = values["video_grid_thw"][0].tolist()
    del values, reference
    # the values are normalised with mean 0.5 and deviation 0.5: one level of 8 bits is 2 / 255
    levels = difference * 127.5
    rows, cpu = [], time.process_time()
    for _ in range(clips):
        rows.append(once(loader, next(different))[1:])
    cpu = (time.process_time() - cpu) / clips
    return {
        "seconds": statistics.median(map(sum, rows)),
        "load_seconds": statistics.median(row[0] for row in rows),
        "processor_seconds": statistics.median(row[1] for row in rows),
        "cpu_seconds": cpu,
        "grid_thw": grid,
        "mean_levels": float(levels.mean()),
        "p99_levels": float(np.quantile(levels[:: max(1, len(levels) // 2000)], 0.99)),
        "largest_levels": float(levels.max()),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def _processor() -> Any:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    # the budget of the released checkpoints; the default of the class is far smaller
    return Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25_165_824}, cap_pixels_per_frame=False)


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def gpu() -> dict[str, str]:
    """Return the name of the GPU, and the CUDA version that PyTorch was built for."""
    import torch

    return {"gpu": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}


_JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (same_frames, right_frames, load_on_cpu, load_on_gpu, pipeline, versions, gpu)
}


if __name__ == "__main__":
    # libraries may print to standard output, so the answer gets a descriptor of its own
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.argv[1])
    answer.write(json.dumps(_JOBS[job.pop("job")](**job)))
    answer.flush()
    # do not wait for threads and contexts that a library leaves behind
    os._exit(0)
