"""The jobs of bench/engines.py, each done in a process of its own: one JSON object in, one out."""

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
"""As many as vLLM's server has when nobody says otherwise."""
_PACKAGES = (
    "vllm", "transformers", "torch", "torchcodec", "av", "numpy", "opencv-python-headless", "PyNvVideoCodec",
    "nvidia-deepstream-videodecode-cu13",
)  # fmt: skip
_NEIGHBOURS = 2
"""A frame is taken for another one if it is more like one that is so many away at most."""


def media_io(**kwargs: Any) -> Any:
    """vLLM's own loader with these options, telecine's plugin being registered."""
    with contextlib.redirect_stdout(sys.stderr):
        from support import torchvision_on_cpu

        torchvision_on_cpu.prepare()
        _without_kernels()
        from telecine.integrations.vllm import register

        register()
        from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

        return VideoMediaIO(ImageMediaIO(), **kwargs)


def _without_kernels() -> None:
    """Let a vLLM that was built without its kernels be imported on a machine with a GPU, where it looks for them.

    None of them takes part in loading.
    """
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    if find_spec("vllm._C_stable_libtorch") is None:
        vllm.platforms._current_platform = UnspecifiedPlatform()


def each_different(data: bytes) -> Iterator[bytes]:
    """The same video again and again, never the same bytes: nothing is found in a cache."""
    for number in itertools.count():
        # an empty box at the end, which every reader of MP4 skips
        yield data + struct.pack(">I4sQ", 16, b"free", number) if data[4:8] == b"ftyp" else data


def same_frames(clip: str, codecs: list[str], num_frames: int) -> dict[str, Any]:
    """How the frames of each codec differ from those of the first one."""
    import numpy as np

    data = Path(clip).read_bytes()
    found = {codec: media_io(num_frames=num_frames, backend=codec).load_bytes(data).media for codec in codecs}
    reference, told = found[codecs[0]]
    answer = {}
    for codec, (frames, labels) in found.items():
        difference = np.abs(np.asarray(frames).astype(np.int16) - reference)
        answer[codec] = {
            "same_indices": labels["frames_indices"] == told["frames_indices"],
            "largest_difference": int(difference.max()),
            "mean_difference": round(float(difference.mean()), 4),
        }
    return answer


def _each(cases: list[dict[str, Any]], do: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``do`` says of each case, or why it could not."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        try:
            rows.append(do(**case))
        except Exception as error:
            traceback.print_exc()
            rows.append({"failed": _reason(error)})
    return rows


def _reason(error: BaseException | None) -> str:
    """The message, and behind it those of the causes."""
    messages = []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "; because of ".join(messages)


def right_frames(cases: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Whether the frames of a codec with its own colours are those that it says they are, by telecine on the CPU."""
    import numpy as np

    import telecine

    def look(clip: str, num_frames: int) -> dict[str, Any]:
        data = Path(clip).read_bytes()
        frames, told = media_io(num_frames=num_frames, **options).load_bytes(data).media
        _, wanted = media_io(num_frames=num_frames, backend="telecine", device="cpu").load_bytes(data).media
        labels = told["frames_indices"]
        reference = telecine.load(data, indices=labels, device="cpu").data
        difference = np.abs(np.asarray(frames).astype(np.int16) - reference)
        errors = [float(np.mean(np.square(each, dtype=np.float32))) for each in difference]
        return {
            "same_indices": labels == wanted["frames_indices"],
            "frames": len(frames),
            "frames_of_another_index": _misplaced(data, np.asarray(frames), labels),
            "largest_difference": int(difference.max()),
            "worst_psnr": round(min(99.0 if not error else 10 * math.log10(255**2 / error) for error in errors), 2),
        }

    return _each(cases, look)


def _misplaced(data: bytes, frames: Any, labels: list[int]) -> int:
    """How many frames are clearly more like a neighbour than like the frame that they are said to be."""
    import cv2
    import numpy as np

    import telecine

    last = telecine.probe(data).num_frames - 1
    near = {label: range(max(0, label - _NEIGHBOURS), min(last, label + _NEIGHBOURS) + 1) for label in labels}
    names = sorted(set(itertools.chain.from_iterable(near.values())))
    small = telecine.load(data, indices=names, size=(frames.shape[1] // 4, frames.shape[2] // 4), device="cpu").data

    def look(picture: Any) -> Any:
        gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        gray = cv2.resize(gray, (160, 90), interpolation=cv2.INTER_AREA).astype(np.float32)
        return gray - gray.mean()  # other colour conversions may be lighter or darker

    looks = dict(zip(names, map(look, small), strict=True))
    misplaced = 0
    for frame, label in zip(frames, labels, strict=True):
        seen = look(cv2.resize(frame, small.shape[2:0:-1], interpolation=cv2.INTER_AREA))
        distance = {name: float(np.abs(seen - looks[name]).mean()) for name in near[label]}
        misplaced += distance[label] > min(distance.values()) + 0.02
    return misplaced


def load_on_cpu(clip: str, codec: str, num_frames: int, requests: int) -> dict[str, float]:
    """So many requests in vLLM's loader threads."""
    different = each_different(Path(clip).read_bytes())
    loader = media_io(num_frames=num_frames, backend=codec)
    loader.load_bytes(next(different))
    clips = [next(different) for _ in range(requests)]
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    with ThreadPoolExecutor(LOADER_THREADS) as pool:
        started, cpu = time.perf_counter(), time.process_time()
        # the result is dropped at once: what is measured is what decoding holds
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
    """What so many loader threads get through in a stretch of time, when all of them are busy."""

    def measure(clip: str, num_frames: int) -> dict[str, float]:
        different = each_different(Path(clip).read_bytes())
        loader = media_io(num_frames=num_frames, **options)
        loader.load_bytes(next(different))
        return _throughput(loader, different, seconds, threads)

    return _each(cases, measure)


def _throughput(loader: Any, different: Iterator[bytes], seconds: float, count: int) -> dict[str, float]:
    """Counted inside the run: when the threads begin and when they end, engines stand idle.

    Threads that began together end together for a long time, so whole rounds of them are counted.
    """
    finished: list[tuple[float, float]] = []  # when, and the processor time used until then
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
    """Most bytes in use on the GPU, by all there is on it, until it is enough, but a second at least.

    Looking takes processor time, so nobody looks while that is counted.
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
    """From bytes to the output of Qwen3-VL's video processor, as a server does it with the model's own budget."""
    import numpy as np

    different = each_different(Path(clip).read_bytes())
    loader, reference_loader = media_io(**sampling, **options), media_io(**sampling, **plain)
    processor = _processor()
    from vllm.utils.torch_utils import set_default_torch_num_threads

    def once(loader: Any, data: bytes) -> tuple[Any, float, float]:
        started = time.perf_counter()
        frames, told = loader.load_bytes(data).media
        loaded = time.perf_counter()
        told = {key: value for key, value in told.items() if key != "do_sample_frames"}
        # vLLM's renderer runs the processor inside this: on one thread, unless OMP_NUM_THREADS says otherwise
        with set_default_torch_num_threads():
            values = processor(
                videos=[frames], video_metadata=[told], do_sample_frames=False, return_tensors="pt", device="cpu"
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

    # the budget of the released checkpoints; the class's own default is that of a toy
    return Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25_165_824}, cap_pixels_per_frame=False)


def versions() -> dict[str, str]:
    """Of what takes part, where it is installed."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def gpu() -> dict[str, str]:
    """The GPU, and the CUDA that PyTorch was built for."""
    import torch

    return {"gpu": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}


_JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (same_frames, right_frames, load_on_cpu, load_on_gpu, pipeline, versions, gpu)
}


if __name__ == "__main__":
    # libraries write to the standard output as they please; the answer has it for itself
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told = json.loads(sys.argv[1])
    answer.write(json.dumps(_JOBS[told.pop("job")](**told)))
    answer.flush()
    # threads and contexts that a library leaves behind are not waited for
    os._exit(0)
