"""User code that type checkers must accept. It is checked, never run."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import telecine
from telecine import nvdec

path = Path("clip.mp4")
array: npt.NDArray[np.uint8] = np.zeros(100, np.uint8)


def sources() -> None:
    for source in ("clip.mp4", path, b"", bytearray(), memoryview(b""), io.BytesIO(), path.open("rb"), array):
        telecine.load(source)
    telecine.load({"path": "clip.mp4", "bytes": None})
    telecine.probe(path, limits=telecine.Limits(max_pixels=3840 * 2160), timeout=5)


def options() -> None:
    telecine.load(path, num_frames=8, fps=2, start=0.5, end=Fraction(20, 3), timeout=30)
    telecine.load(path, num_frames=np.int64(8), fps=np.float32(2.5), timeout=np.float64(1), size=np.int32(224))
    telecine.load(path, indices=[0, 5, 5], size=(360, 640), layout="NCHW", pad="repeat")
    telecine.load(path, indices=np.arange(5), size=telecine.Fit(max_pixels=100_000))
    telecine.load(path, timestamps=[0.5, Fraction(1, 3), np.float64(2)], errors="strict")
    telecine.load(path, policy="qwen3_vl", backend="auto", device="cuda:1", out="torch", timeout=telecine.Deadline(5))
    telecine.load(path, backend="pyav", threads=2)
    of_another_package: dict[str, Any] = {"backend": "theirs", "their_option": 1}
    telecine.load(path, **of_another_package)


def numbers_of_other_libraries() -> None:
    limits = telecine.Limits(max_pixels=np.int64(2**26), max_seconds=Fraction(7, 2), read_timeout=np.float32(5))
    assert_type((limits.max_pixels, limits.max_seconds), tuple[int, float])
    sampling = telecine.Sampling(num_frames=np.int64(8), fps=np.float32(2.5), start=Fraction(1, 3))
    assert_type((sampling.num_frames, sampling.fps), tuple[int | None, float | Fraction | None])
    telecine.Sampling(indices=np.arange(5)), telecine.Sampling(timestamps=[0.5, Fraction(1, 3)])
    assert_type(telecine.Fit(np.int64(100_000), multiple_of=np.int32(28)).max_pixels, int)


def video() -> None:
    with telecine.open(path, device="cuda", errors="strict", timeout=30) as video:
        assert_type(video, telecine.Video)
        assert_type(video[0], telecine.Frame)
        assert_type(video[10:200:5], telecine.Frames)
        assert_type(video.load(num_frames=8, pad="repeat"), telecine.Frames)
        for chunk in video.iterate(fps=1, size=360, chunk_frames=64):
            assert_type(chunk, telecine.Frames)
        assert_type([frame.timestamp for frame in video], list[float])


def frames() -> None:
    frames = telecine.load(path)
    assert_type(frames, telecine.Frames)
    assert_type(frames[0], telecine.Frame)
    assert_type(frames[np.int64(0)], telecine.Frame)
    assert_type(frames[1:3], telecine.Frames)
    assert_type(frames[[2, 0]], telecine.Frames)
    assert_type(frames[frames.mask], telecine.Frames)
    assert_type([frame.index for frame in frames], list[int])
    assert_type(frames.numpy(), npt.NDArray[np.uint8])
    assert_type(frames.info.duration, float)
    np.asarray(frames).mean()
    frames.sheet().save("sheet.jpg")
    frames[0].pil().save("frame.png")


def engine() -> None:
    assert_type([status.usable for status in telecine.list_backends()], list[bool])
    nvdec.warm_up(["h264"], [(1080, 1920)])
    assert_type(nvdec.stats(), dict[str, int])


def pool() -> None:
    with telecine.Pool(threads=2, queue=np.int64(8)) as pool:
        assert_type(pool.load(path, num_frames=8, caller="tenant", timeout=5), telecine.Frames)
        assert_type(pool.submit(b"", fps=1, cache_key="etag").result(), telecine.Frames)
        for frames in pool.map([path, path], fps=1, timeout=Fraction(1, 2)):
            assert_type(frames, telecine.Frames)
        for result in pool.map([path], return_errors=True):
            assert_type(result, telecine.Frames | telecine.TelecineError)
