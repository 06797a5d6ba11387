"""Damaged streams and DLPack exports on a GPU: NVDEC loses the frames that the CPU loses, and exports their pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.fake_driver import build
from support.ffmpeg_cli import ffmpeg

pytestmark = pytest.mark.gpu
_ENCODERS = {
    "reordered": "-c:v libx264 -g 30 -bf 2",
    "several slices": "-c:v libx264 -g 30 -bf 2 -x264-params slices=4",
    "hevc": "-c:v libx265 -g 30 -x265-params log-level=none",
}


@pytest.fixture(autouse=True)
def real_driver() -> None:
    """Load the real driver, even if another test has loaded the fake one."""
    nvdec: Any = build.native()
    nvdec.shutdown()
    nvdec.load("libcuda.so.1", "libnvcuvid.so.1")


def _encode(folder: Path, encoder: str, suffix: str) -> bytes:
    clip = folder / f"clip.{suffix}"
    source = "testsrc2=s=640x480:r=25:d=3"
    ffmpeg(["-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", *encoder.split(), str(clip)])
    return clip.read_bytes()


def _assert_same_losses(data: bytes) -> None:
    """Check that no damaged frame is returned, and that the GPU loses what the CPU loses."""
    cpu = telecine.load(data, backend="pyav")
    gpu = telecine.load(data, backend="nvdec", device="cuda", out="numpy")
    assert gpu.report.lost == cpu.report.lost and gpu.report.damage_checked
    assert np.abs(gpu.data.astype(int) - cpu.data).max() <= 3


@pytest.mark.parametrize("part", [0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("encoder", _ENCODERS.values(), ids=_ENCODERS.keys())
def test_3000_zeros_in_an_mp4_lose_the_same_frames_as_on_the_cpu(tmp_path: Path, encoder: str, part: float) -> None:
    data = bytearray(_encode(tmp_path, encoder, "mp4"))
    at = int(len(data) * part)
    data[at : at + 3000] = bytes(3000)
    _assert_same_losses(bytes(data))


@pytest.mark.parametrize("part", [0.3, 0.62, 0.7, 0.85])
@pytest.mark.parametrize("encoder", _ENCODERS.values(), ids=_ENCODERS.keys())
def test_a_cut_transport_stream_loses_the_same_frames_as_on_the_cpu(tmp_path: Path, encoder: str, part: float) -> None:
    data = _encode(tmp_path, encoder, "ts")
    _assert_same_losses(data[: int(len(data) * part)])


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"copy": False}], ids=str)
def test_torch_imports_a_device_array_on_any_stream(options: dict[str, bool]) -> None:
    torch = pytest.importorskip("torch")
    if options and "copy" not in (torch.from_dlpack.__doc__ or ""):
        pytest.skip("this torch passes no copy to __dlpack__")
    frames = telecine.load(CLIPS["base.mp4"].path(), num_frames=5, backend="nvdec", device="cuda", out="array")
    host = frames.numpy()
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            imported = torch.from_dlpack(frames.data, **options)
            assert np.array_equal(imported.cpu().numpy(), host)
        assert (imported.data_ptr() == frames.data.pointer) is not options.get("copy", False)


def test_numpy_imports_a_device_array_by_a_copy() -> None:
    frames = telecine.load(CLIPS["base.mp4"].path(), num_frames=5, backend="nvdec", device="cuda", out="array")
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy imports no arrays of other devices")
    assert np.array_equal(np.from_dlpack(frames.data, device="cpu"), frames.numpy())
