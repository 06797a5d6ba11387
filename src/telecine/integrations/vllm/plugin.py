"""Enters telecine into vLLM's registries. Each part is tried by itself, so that one failing takes no other with it.

What is entered where was read from vLLM 0.33, and found to be the same in 0.32. Loader, connector and sampling classes
have public registries. The codec has not: it takes an entry in a private table and a module under the name that vLLM
imports. So every part looks first whether what it needs is there, and if not says which part is off, why, and what to
use in its place.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from telecine.integrations.vllm.options import default_device, defaults

__all__ = ["register", "state"]

# a child of vLLM's own logger: others have no handler in its processes
_log = logging.getLogger("vllm.plugins.telecine")
_NAME = "telecine"
_DECODERS = "vllm.multimodal.video_decoders"
_ON = "on"
_state: dict[str, str] = {}
"""Part -> "on", or why not."""


class _Missing(Exception):
    """This vLLM lacks something."""


def register() -> None:
    """Make telecine known to vLLM; the entry point in the group ``vllm.general_plugins``.

    vLLM calls it in each of its processes, maybe more than once. It touches no GPU, imports no decoder, and never
    raises: what cannot be entered is logged with the reason and the way out.
    """
    try:
        importlib.import_module("vllm.multimodal.video")
    except Exception as error:
        _state["vllm"] = f"off: vllm.multimodal.video cannot be imported ({error})"
        _log.warning("telecine is off: vllm.multimodal.video cannot be imported (%s)", error)
        return
    _state.pop("vllm", None)
    for part, (enter, way_out) in _PARTS.items():
        if _state.get(part) == _ON:
            continue
        try:
            enter()
            _state[part] = _ON
        except Exception as error:
            reason = str(error) if isinstance(error, _Missing) else f"{type(error).__name__}: {error}"
            _state[part] = f"off: {reason}. {way_out}"
            _log.warning("telecine's %s is off with vLLM %s: %s. %s", part, _version(), reason, way_out)
    _log.debug("telecine is registered: %s", _state)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _module(name: str, *attributes: str) -> Any:
    """A module of vLLM that has these attributes."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise _Missing(f"there is no {name} ({error})") from error
    for attribute in attributes:
        if not hasattr(module, attribute):
            raise _Missing(f"{name} has no {attribute}")
    return module


def _enter_codec() -> None:
    decoders = _module(_DECODERS, "_BACKEND_OPTION_DEFAULTS", "VideoSourceMetadata", "check_frame_pixel_limit")
    codec = importlib.import_module("telecine.integrations.vllm.codec")
    decoders._BACKEND_OPTION_DEFAULTS[_NAME] = defaults()
    sys.modules[f"{_DECODERS}.{_NAME}"] = codec


def _enter_loader() -> None:
    from telecine.integrations.vllm.loader import make_loader

    video = _module("vllm.multimodal.video", "VIDEO_LOADER_REGISTRY", "VideoLoader")
    video.VIDEO_LOADER_REGISTRY.register(_NAME)(make_loader(video.VideoLoader))


def _enter_classes() -> None:
    from telecine.integrations.vllm.patched_loaders import WRAPPERS

    registry = _module("vllm.multimodal.video", "VIDEO_LOADER_REGISTRY").VIDEO_LOADER_REGISTRY
    failed = []
    for name, derive in WRAPPERS.items():
        try:
            registry.register(name)(derive(registry.name2class[name]))
        except (KeyError, AttributeError) as error:
            failed.append(f"{name} ({error})")
    if failed:
        raise _Missing(f"not found as expected: {', '.join(failed)}")


def _enter_connector() -> None:
    from telecine.integrations.vllm.connector import make_connector

    module = _module("vllm.multimodal.media.connector", "MEDIA_CONNECTOR_REGISTRY", "MediaConnector")
    for method in ("load_from_url", "load_from_url_async", "_load_file_url", "_get_cached_bytes", "_put_cached_bytes"):
        if not hasattr(module.MediaConnector, method):
            raise _Missing(f"MediaConnector has no {method}")
    module.MEDIA_CONNECTOR_REGISTRY.register(_NAME)(make_connector(module.MediaConnector))


def _enter_guard() -> None:
    from telecine.integrations.vllm.gpu_memory_guard import guarded_io, reserving

    connector = _module("vllm.multimodal.media.connector", "MODALITY_IO_MAP")
    config = _module("vllm.config.multimodal", "MultiModalConfig").MultiModalConfig
    if not hasattr(config, "use_gpu_video_backend"):
        raise _Missing("MultiModalConfig has no use_gpu_video_backend")
    connector.MODALITY_IO_MAP["video"] = guarded_io(connector.MODALITY_IO_MAP["video"])
    config.use_gpu_video_backend = reserving(config.use_gpu_video_backend)
    if default_device().startswith("cuda"):
        registry = _module("vllm.multimodal.video", "VIDEO_LOADER_REGISTRY").VIDEO_LOADER_REGISTRY
        registry.register_gpu_codec(_NAME)


_PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "codec": (_enter_codec, 'Use the loader: --media-io-kwargs \'{"video": {"video_backend": "telecine"}}\''),
    "loader": (_enter_loader, "Decode before the request, with telecine.load, and send the frames"),
    "classes": (
        _enter_classes,
        'Such models keep OpenCV; to decode with telecine, use "video_backend": "telecine" with the model\'s "policy"',
    ),
    "connector": (_enter_connector, "Leave VLLM_MEDIA_CONNECTOR unset; vLLM then reads and fetches by itself"),
    "guard": (
        _enter_guard,
        'With "device": "cuda", leave room on the GPU yourself (--mm-ipc-gpu-memory-gb, --gpu-memory-utilization)',
    ),
}
"""Part -> what enters it, and what to do where that is not possible."""


def state() -> dict[str, Any]:
    """What of telecine is on in vLLM, as seen in this process after :func:`register`. Imports vLLM.

    Returns:
        A dict fit for JSON: ``vllm`` (its version, or None), ``parts``, ``codec_options``, ``loaders`` (each name in
        vLLM's registry and whether ``"backend": "telecine"`` reaches it), ``connectors``, and what is ``chosen`` by
        the environment.
    """
    register()
    if "vllm" in _state:
        return {"vllm": None, "parts": dict(_state)}
    found: dict[str, Any] = {"vllm": _version(), "parts": dict(_state)}
    decoders = sys.modules.get(_DECODERS)
    found["codec_options"] = sorted(getattr(decoders, "_BACKEND_OPTION_DEFAULTS", {}).get(_NAME, ()))
    found["loaders"] = _loaders()
    connector = sys.modules.get("vllm.multimodal.media.connector")
    found["connectors"] = sorted(getattr(getattr(connector, "MEDIA_CONNECTOR_REGISTRY", None), "name2class", ()))
    found["chosen"] = {name: os.environ.get(name) for name in ("VLLM_PLUGINS", *_CHOSEN_BY)}
    return found


_CHOSEN_BY = ("VLLM_VIDEO_LOADER_BACKEND", "VLLM_MEDIA_CONNECTOR", "TELECINE_DEVICE")


def _loaders() -> dict[str, str]:
    """How each loader comes to telecine."""
    registry = importlib.import_module("vllm.multimodal.video").VIDEO_LOADER_REGISTRY
    bound: dict[str, list[str]] = {}
    for processor, name in registry.processor2backend.items():
        bound.setdefault(name, []).append(processor)
    rows = {}
    for name in sorted(registry.name2class):
        if name == _NAME:
            how = "telecine's own sampling"
        elif name == "pynvvideocodec":
            how = "its own codec always"
        elif _state.get("codec") != _ON or (name in ("molmo2", "openpangu") and _state.get("classes") != _ON):
            how = "not reached"
        else:
            how = '"backend": "telecine"'
        rows[name] = f"{how}; bound to {', '.join(sorted(bound[name]))}" if name in bound else how
    return rows
