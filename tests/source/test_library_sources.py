"""Sources as other libraries hand them over: dataset rows, tensors, fsspec files, objects that open a file."""

from __future__ import annotations

import gzip
import importlib.resources
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telecine.deadline import Deadline
from telecine.errors import LimitError, OptionsError, SourceError
from telecine.limits import Limits
from telecine.source.source import Source, open_source

VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(range(256)) * 40


def opened(source: object, limits: Limits | None = None) -> Source:
    return open_source(source, limits or Limits(), Deadline(60))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(VIDEO)
    return path


class Tensor:
    """A tensor as torch, CuPy or JAX have it: no buffer, but DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], device_type: int = 1, device: str = "cpu") -> None:
        self.array = array
        self.device = device
        self._device_type = device_type

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device_type, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class OpenFile:
    """An fsspec ``OpenFile``: a context manager that opens a file; ``open()`` takes no mode."""

    def __init__(self, path: Path | str, mode: str = "rb", compressed: bool = False) -> None:
        self.path, self.mode, self.compressed = path, mode, compressed
        self.files: list[Any] = []

    def __enter__(self) -> Any:
        self.files.append((gzip.open if self.compressed else open)(self.path, self.mode))
        return self.files[-1]

    def __exit__(self, *_: object) -> None:
        while self.files:
            self.files.pop().close()

    def open(self) -> Any:
        return self.__enter__()


@pytest.mark.parametrize("path_value", [None, "missing.mp4", "https://host.example/clip.mp4", 3])
@pytest.mark.parametrize("content", [VIDEO, bytearray(VIDEO), np.frombuffer(VIDEO, np.uint8)])
def test_bytes_of_a_dataset_row_win_over_its_path(content: object, path_value: object) -> None:
    assert opened({"path": path_value, "bytes": content}).data == VIDEO


@pytest.mark.parametrize("as_text", [True, False])
def test_path_of_a_dataset_row_is_used_without_bytes(path: Path, as_text: bool) -> None:
    for row in ({"path": str(path) if as_text else path, "bytes": None}, {"path": path, "duration": 3.5}):
        with opened(row) as source:
            assert source.data == VIDEO
            assert source.name == "clip.mp4"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, r"a row with the keys \[\]; one of 'bytes' and 'path' must be there"),
        ({"url": "x", "id": 3}, r"a row with the keys \['url', 'id'\]"),
        ({"path": None, "bytes": None}, "a row with the keys"),
        ({"bytes": "text"}, "a row whose 'bytes' is a str; it must be bytes or None"),
        ({"bytes": {"bytes": VIDEO}}, "a row whose 'bytes' is a dict"),
        ({"bytes": [1, 2]}, "the source is a list; accepted are"),
        ({"bytes": None, "path": 3}, "a row whose 'path' is a int; it must be a str"),
        ({"path": {"path": "x"}}, "a row whose 'path' is a dict"),
    ],
)
def test_dataset_row_without_a_video_is_refused(row: dict[str, object], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        opened(row)


def test_limits_hold_for_dataset_rows(path: Path) -> None:
    for row in ({"bytes": VIDEO}, {"path": str(path)}):
        with pytest.raises(LimitError, match="max_bytes"):
            opened(row, Limits(max_bytes=100))
    with pytest.raises(OptionsError, match="allow_file_urls"):
        opened({"path": path.as_uri()})


@pytest.mark.parametrize("device_type", [1, 3])
def test_tensor_in_host_memory_is_used_without_a_copy(device_type: int) -> None:
    array = np.frombuffer(VIDEO, np.uint8).copy()
    with opened(Tensor(array, device_type)) as source:
        array[0] = 9
        assert source.data[0] == 9
        assert source.data[1:] == VIDEO[1:]
        assert source.name == f"Tensor ({len(VIDEO)} bytes)"


def test_tensor_on_a_gpu_is_refused_by_its_device() -> None:
    with pytest.raises(OptionsError, match=r"^the source is a Tensor on cuda:0; copy the encoded bytes to the CPU"):
        opened(Tensor(np.zeros(10, np.uint8), 2, "cuda:0"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 5), np.uint8), r"a Tensor of shape \(2, 5\) with 1 bytes an item; a buffer must be one-dim"),
        (np.zeros(10, np.float32), r"a Tensor of shape \(10,\) with 4 bytes an item"),
        (np.zeros(10, np.uint8)[::2], r"a Tensor of shape \(5,\) with 1 bytes an item; .* contiguous"),
        (np.array(["a"]), "a Tensor whose memory cannot be read as bytes"),
    ],
    ids=["frames", "float", "strided", "strings"],
)
def test_tensor_that_is_no_row_of_bytes_is_refused(array: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        opened(Tensor(array))


def test_torch_tensor_is_used_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.frombuffer(bytearray(VIDEO), dtype=torch.uint8)
    with opened(tensor) as source:
        assert source.data == VIDEO
        tensor[0] = 9
        assert source.data[0] == 9
    for wrong in (tensor.float(), tensor[:10].reshape(2, 5), tensor[::2], torch.zeros(3, device="meta")):
        with pytest.raises(OptionsError, match="the source is a Tensor"):
            opened(wrong)


@pytest.mark.parametrize("compressed", [False, True])
def test_fsspec_open_file_is_entered_and_closed_again(path: Path, compressed: bool) -> None:
    if compressed:
        path.write_bytes(gzip.compress(VIDEO))
    source = OpenFile(path, compressed=compressed)
    for _ in range(2):
        assert opened(source).data == VIDEO
        assert source.files == []


def test_fsspec_open_file_in_text_mode_is_refused(path: Path) -> None:
    source = OpenFile(path, "r")
    with pytest.raises(OptionsError, match=r"clip\.mp4 is open in text mode"):
        opened(source)
    assert source.files == []


def test_installed_fsspec_gives_the_same(path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    assert opened(fsspec.open(str(path))).data == VIDEO
    with fsspec.open(str(path)) as file:
        assert opened(file).data == VIDEO
    memory = fsspec.open("memory://folder/clip.mp4", "wb")
    with memory as file:
        file.write(VIDEO)
    source = opened(fsspec.open("memory://folder/clip.mp4"))
    assert source.data == VIDEO
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(VIDEO))
    assert opened(fsspec.open(str(packed), compression="gzip")).data == VIDEO
    with pytest.raises(SourceError, match="OpenFile: opening it failed with FileNotFoundError"):
        opened(fsspec.open(str(path.with_name("missing.mp4"))))


def test_object_with_a_method_open_is_opened_in_binary_mode(tmp_path: Path) -> None:
    archive = tmp_path / "clips.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("folder/clip.mp4", VIDEO)
    inside = zipfile.Path(archive, "folder/clip.mp4")
    assert opened(inside).data == VIDEO
    assert opened(inside).name == "clip.mp4"
    with pytest.raises(LimitError, match="max_bytes"):
        opened(inside, Limits(max_bytes=100))
    with pytest.raises(SourceError, match="Path: opening it failed with FileNotFoundError"):
        opened(zipfile.Path(archive, "missing.mp4"))
    resource = importlib.resources.files("numpy").joinpath("version.py")
    with pytest.raises(SourceError, match=r"version\.py is text"):
        opened(resource)


@pytest.mark.parametrize("opens", ["nothing", 3, io.StringIO("text")])
def test_object_that_opens_no_binary_file_is_refused(opens: object) -> None:
    class Opener:
        def open(self, mode: str = "r") -> object:
            return opens

    with pytest.raises((SourceError, OptionsError), match=r"opening it failed with|text mode"):
        opened(Opener())


def test_error_while_opening_is_named_and_not_quoted() -> None:
    class Opener:
        def open(self, mode: str) -> object:
            raise ConnectionError("https://user:pa55@video.example")

    with pytest.raises(SourceError, match=r"^Opener: opening it failed with ConnectionError$"):
        opened(Opener())
