"""Measure the NVDEC engine on this machine's GPU, after comparing its frames with the CPU's.

    python bench/nvdec.py CLIP [CLIP ...] [--threads 16] [--seconds 8] [--out FILE.json]

For each clip: clips and source frames per second with many Python threads, processor cores in use, GPU memory, latency
of one clip alone and of the first clip of a new process, the copy to the host and a plain pinned copy, and the rate at
which all pictures are decoded and none kept, by the engine and by a loop without it (raw_limit.cpp). Peers are measured
if they are installed, each in a process of its own: PyNvVideoCodec's SimpleDecoder, DeepStream's pool, TorchCodec on
CUDA, used as in their documentation and through telecine's backends.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from nvdec_peers import PEERS, GpuFrames, NotInstalled

import telecine
from telecine import nvdec
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.index.packet_index import read_index
from telecine.limits import Limits
from telecine.source.source import open_source

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "src" / "telecine" / "native"
WANTED = 8
MAX_DIFFERENCE = 3
"""Largest allowed difference per channel from the CPU backend."""

USES: dict[str, list[dict[str, dict[str, Any]]]] = {
    "pynvvideocodec": [{"alone": {}}, {"backend": {}}, {"backend": {"hw_decoders": 16}}],
    # without this variable, which the backend sets, it copies surfaces that may be incomplete
    "deepstream": [{"alone": {}}, {"alone": {"DS_SYNC_COPY": "1"}}, {"backend": {}}, {"backend": {"pool_size": 16}}],
    "torchcodec": [{"alone": {}}, {"backend": {}}],
}
"""Uses of each peer: alone, with these environment variables and one decoder per thread, at most 16; and through its
telecine backend, with these options."""

Work = Callable[[], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--flat", type=int, default=1000, help="clips after which GPU memory must not have grown")
    parser.add_argument("--peers", default=",".join(PEERS), help="which to time; empty for none")
    parser.add_argument("--only-peers", action="store_true", help="time nothing but the peers")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure_peer(options.clips[0], json.loads(options.worker), options)))
        return 0
    results: dict[str, Any] = {"machine": machine(), "clips": []}
    for clip in options.clips:
        results["clips"].append(bench(clip, options))
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return 0 if all(clip.get("frames_equal_cpu", True) for clip in results["clips"]) else 1


def bench(clip: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements of a clip; frames are compared before anything is timed."""
    data = clip.read_bytes()
    reference = telecine.load(data, num_frames=WANTED)
    row: dict[str, Any] = {"clip": clip.name, "codec": reference.info.codec, "frames": reference.info.num_frames}
    row |= {"width": reference.info.width, "height": reference.info.height, "wanted": WANTED}
    if not options.only_peers:
        row |= bench_telecine(clip, data, reference, options)
    names = [name for name in options.peers.split(",") if name]
    row["peers"] = {name: [peer(clip, name, use, options) for use in USES[name]] for name in names}
    return row


def bench_telecine(clip: Path, data: bytes, reference: telecine.Frames, options: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of the NVDEC backend."""
    row: dict[str, Any] = {"cold_seconds": cold_start(clip)}

    def load(**more: Any) -> telecine.Frames:
        return telecine.load(data, num_frames=WANTED, backend="nvdec", device="cuda", **more)

    first = load()
    difference = int(np.abs(first.numpy().astype(np.int16) - reference.data).max())
    row |= {"largest_difference": difference, "frames_equal_cpu": difference <= MAX_DIFFERENCE}
    row |= {"packets_fed": first.report.packets_fed, "packets_total": first.report.packets_total}
    throughput(load, options.threads, 1.0)  # creates the sessions of every engine
    row["alone_seconds"] = alone(load)
    row["telecine"] = throughput(load, options.threads, options.seconds)
    row["telecine"]["source_frames_per_second"] = row["telecine"]["clips_per_second"] * reference.info.num_frames
    row["memory_flat"] = memory_growth(load, options.threads, options.flat)
    row["to_host"] = to_host(load)
    row["everything"] = decode_all(clip, options)
    return row


def throughput(work: Work, threads: int, seconds: float, counter: Callable[[], int] | None = None) -> dict[str, float]:
    """Return clips per second and cores in use while ``threads`` Python threads call ``work``.

    The first second and the end are not counted: engines are idle while threads start and stop.
    """
    finished: list[float] = []
    failures: list[Exception] = []
    stop = threading.Event()

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
                finished.append(time.perf_counter())
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=loop) for _ in range(threads)]
    for worker in workers:
        worker.start()
    time.sleep(1.0)
    begun, busy, count = time.perf_counter(), processor_seconds(), counter() if counter else 0
    time.sleep(seconds)
    ended, busy, count = time.perf_counter(), processor_seconds() - busy, (counter() if counter else 0) - count
    stop.set()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    clips = sum(begun <= moment < ended for moment in finished)
    row = {"clips_per_second": clips / (ended - begun), "cores": busy / (ended - begun), "clips": len(finished)}
    return row | ({"counted_per_second": count / (ended - begun)} if counter else {})


def alone(work: Work, times: int = 15) -> float:
    """Return the median wall time of one clip with nothing else running."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def memory_growth(work: Work, threads: int, clips: int) -> dict[str, float]:
    """Return GPU memory in use before and after a number of clips, MiB; torch caches the memory of the output."""
    before = gpu_memory()
    done = 0
    while done < clips:
        done += int(throughput(work, threads, 4.0)["clips"])
    stats = nvdec.stats()
    return {
        "clips": done,
        "before_mib": before,
        "after_mib": gpu_memory(),
        "session_mib": stats["session_bytes"] / 2**20,
        "sessions": stats["sessions_made"],
    }


def to_host(load: Callable[..., telecine.Frames]) -> dict[str, float]:
    """Return the milliseconds of a copy of the frames to the host, and of a plain pinned copy of the same bytes."""
    import torch

    from telecine import _nvdec

    on_device = load().data
    pinned = torch.empty_like(on_device, device="cpu", pin_memory=True)

    def plain() -> None:
        pinned.copy_(on_device, non_blocking=True)
        torch.cuda.synchronize()

    def ours() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        _nvdec.to_host(0, on_device.data_ptr(), tuple(on_device.shape), stream)

    for work in (plain, ours):
        work()
        work()
    return {"plain_ms": 1e3 * alone(plain, 30), "telecine_ms": 1e3 * alone(ours, 30)}


def decode_all(clip: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return pictures per second if all are decoded and none kept, by raw_limit.cpp and by the engine."""
    from telecine import _nvdec

    limits, deadline = Limits(), Deadline()
    with open_source(clip, limits, deadline) as source, Demuxer(source, deadline) as demuxer:
        index = read_index(demuxer, limits, deadline)
        assert index.packets is not None
        context: Any = demuxer.stream.codec_context
        extradata = bytes(context.extradata or b"")
        packets = [bytes(packet) for packet in index.packets]
    display_order = np.empty(index.num_packets, np.int64)
    display_order[np.argsort(index.pts, kind="stable")] = np.arange(index.num_packets)
    flags = np.zeros(index.num_packets, np.uint8)
    ranges = np.array([[0, index.num_packets]], np.int64)
    targets = np.empty((0, 2), np.int64)
    geometry, output = _nvdec.Geometry(16, 16), _nvdec.Output(0, 0)

    def engine() -> None:
        result = _nvdec.decode(
            0, index.codec, extradata, packets, display_order, flags, ranges, targets, geometry, output, None, None
        )
        assert result.pictures == index.num_packets and result.failure is None

    raw = raw_limit(index.codec, extradata, packets, options.seconds)
    engine()
    throughput(engine, options.threads, 1.0)
    # ranges end in bursts of as many as there are sessions, so a short window is inaccurate
    ours = throughput(engine, options.threads, max(25.0, options.seconds), lambda: _nvdec.stats(0)["pictures"])
    ours["pictures_per_second"] = ours.pop("counted_per_second")
    return {"raw": raw, "engine": ours, "share": ours["pictures_per_second"] / raw["pictures_per_second"]}


def raw_limit(codec: str, extradata: bytes, packets: list[bytes], seconds: float) -> dict[str, Any]:
    """Build raw_limit.cpp and run it with one session per engine."""
    from telecine import _nvdec

    with tempfile.TemporaryDirectory() as folder:
        program, stream = Path(folder) / "raw_limit", Path(folder) / "packets"
        sources = [HERE / "raw_limit.cpp", NATIVE / "driver.cpp"]
        subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-O2",
                "-I",
                str(NATIVE),
                *map(str, sources),
                "-o",
                str(program),
                "-ldl",
                "-lpthread",
            ],
            check=True,
        )
        with stream.open("wb") as file:
            for number, packet in enumerate(packets):
                prepared, _, _ = _nvdec._convert_packet(codec, extradata, packet, number == 0)
                file.write(len(prepared).to_bytes(4, "little") + prepared)
        engines = _nvdec.caps(0, codec, "420", 8)["num_engines"]
        command = [str(program), str(stream), codec, str(engines), str(seconds)]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def cold_start(clip: Path) -> float:
    """Return the seconds of the first call in a new process, after imports; median of three."""
    code = (
        "import sys, time, torch, telecine, av\n"
        "begun = time.perf_counter()\n"
        f"telecine.load(sys.argv[1], num_frames={WANTED}, backend='nvdec', device='cuda')\n"
        "torch.cuda.synchronize()\n"
        "print(time.perf_counter() - begun)\n"
    )
    command = [sys.executable, "-c", code, str(clip)]
    return statistics.median(
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)
    )


def peer(clip: Path, name: str, use: dict[str, dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Run a peer in a new process. Return its difference from the CPU's frames, and its throughput and latency.

    Args:
        clip: a video.
        name: of the peer.
        use: one of its :data:`USES`.
        options: of the command line.
    """
    command = [sys.executable, __file__, str(clip), "--worker", json.dumps({"name": name, "use": use})]
    command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    environment = {**os.environ, **use.get("alone", {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    row = {"version": version_of(name), "use": use}
    found = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if not found:
        return row | {"failed": done.stderr.strip().splitlines()[-1:]}
    # a library that crashes at the end of its process has been measured all the same
    return row | ({"died_at_exit": done.returncode} if done.returncode else {}) | dict(json.loads(found[-1]))


def measure_peer(clip: Path, wanted: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure a peer in this process."""
    data = clip.read_bytes()
    reference = telecine.load(data, num_frames=WANTED)
    indices = reference.indices.tolist()
    try:
        with peer_decoder(wanted, data, indices, options.threads) as work:
            frames = work()
            close = [psnr(ours, theirs) for ours, theirs in zip(reference.data, frames, strict=False)]
            row: dict[str, Any] = {"frames": len(frames), "worst_psnr": min(close, default=0.0)}
            throughput(work, options.threads, 2.0)
            row["alone_seconds"] = alone(work, 7)
            return row | throughput(work, options.threads, options.seconds)
    except NotInstalled as error:
        return {"not_installed": str(error)}


@contextmanager
def peer_decoder(wanted: dict[str, Any], data: bytes, indices: list[int], threads: int) -> Iterator[Work]:
    """Provide a function that decodes the clip once, with the library alone or through its telecine backend."""
    name, use = wanted["name"], wanted["use"]
    if "alone" in use:
        with PEERS[name](data, indices, threads) as work:
            yield work
        return
    status = {status.name: status for status in telecine.list_backends()}[name]
    if not status.usable:
        raise NotInstalled(str(status.reason))

    def decode() -> GpuFrames:
        return GpuFrames(
            telecine.load(data, indices=indices, backend=name, device="cuda", errors="strict", **use["backend"]).data
        )

    yield decode


def psnr(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    if ours.shape != theirs.shape:
        return 0.0
    error = float(np.mean((ours.astype(np.float32) - theirs) ** 2))
    return 99.0 if error == 0 else 10 * float(np.log10(255**2 / error))


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def gpu_memory() -> float:
    """Return the MiB in use on the first GPU by all processes."""
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 2**20


def version_of(package: str) -> str | None:
    names = {"deepstream": "nvidia-deepstream-videodecode-cu13"}
    try:
        return version(names.get(package, package))
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    from telecine import _nvdec

    commit = subprocess.run(
        ["git", "rev-parse", "--verify", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or None,
        "gpu": _nvdec.device_name(0),
        "driver_cuda": _nvdec.driver_version(),
        "engines": _nvdec.caps(0, "h264", "420", 8)["num_engines"],
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("telecine", "av", "numpy", "torch", *PEERS)},
    }


if __name__ == "__main__":
    sys.exit(main())
