"""Registration of telecine in vLLM. Each part is registered by itself, so one that fails does not affect the others.

Written for vLLM 0.33; 0.32 is the same here. Loaders, connectors and sampling classes have public registries. The codec
has none: it takes an entry in a private table, and a module under the name that vLLM imports. So each part first checks
that vLLM has what it needs. If not, a warning names the part, the reason and the alternative.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from telecine.integrations.vllm.options import default_device, default_options

__all__ = ["register", "state"]

# a child of vLLM's logger: other loggers have no handler in its processes
_log = logging.getLogger("vllm.plugins.telecine")
_NAME = "telecine"
_DECODERS = "vllm.multimodal.video_decoders"
_VIDEO = "vllm.multimodal.video"
_CONNECTOR = "vllm.multimodal.media.connector"
_CONNECTOR_METHODS = (
    "load_from_url", "load_from_url_async", "_load_file_url", "_get_cached_bytes", "_put_cached_bytes",
)  # fmt: skip
_VARIABLES = ("VLLM_PLUGINS", "VLLM_VIDEO_LOADER_BACKEND", "VLLM_MEDIA_CONNECTOR", "TELECINE_DEVICE")
_ON = "on"
_state: dict[str, str] = {}
"""State of each part: "on", or the reason why it is off."""


class _MissingError(Exception):
    """This version of vLLM lacks something that a part needs."""


def register() -> None:
    """Register telecine in vLLM: the entry point in the group ``vllm.general_plugins``.

    vLLM calls it in each of its processes, perhaps more than once. It initialises no GPU, imports no decoder, and never
    raises: a part that cannot be registered is logged with the reason and the alternative.
    """
    try:
        import vllm

        importlib.import_module(_VIDEO)
    except Exception as error:
        _state["vllm"] = f"off: {_VIDEO} cannot be imported ({error})"
        _log.warning("telecine is off: %s cannot be imported (%s)", _VIDEO, error)
        return
    _state.pop("vllm", None)
    for part, (enable, alternative) in _PARTS.items():
        if _state.get(part) == _ON:
            continue
        try:
            enable()
            _state[part] = _ON
        except Exception as error:
            reason = str(error) if isinstance(error, _MissingError) else f"{type(error).__name__}: {error}"
            _state[part] = f"off: {reason}. {alternative}"
            _log.warning("telecine's %s is off with vLLM %s: %s. %s", part, vllm.__version__, reason, alternative)
    _log.debug("telecine is registered: %s", _state)


def _import(name: str, *attributes: str) -> Any:
    """Import a module of vLLM and check that it has these attributes."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise _MissingError(f"there is no {name} ({error})") from error
    _check_attributes(module, name, attributes)
    return module


def _check_attributes(owner: Any, name: str, attributes: tuple[str, ...]) -> None:
    for attribute in attributes:
        if not hasattr(owner, attribute):
            raise _MissingError(f"{name} has no {attribute}")


def _enable_codec() -> None:
    decoders = _import(_DECODERS, "_BACKEND_OPTION_DEFAULTS", "VideoSourceMetadata", "check_frame_pixel_limit")
    codec = importlib.import_module("telecine.integrations.vllm.codec")
    decoders._BACKEND_OPTION_DEFAULTS[_NAME] = default_options()
    sys.modules[f"{_DECODERS}.{_NAME}"] = codec


def _enable_loader() -> None:
    from telecine.integrations.vllm.loader import make_loader

    video = _import(_VIDEO, "VIDEO_LOADER_REGISTRY", "VideoLoader")
    video.VIDEO_LOADER_REGISTRY.register(_NAME)(make_loader(video.VideoLoader))


def _enable_classes() -> None:
    from telecine.integrations.vllm.patched_loaders import PATCHED, derive_loader

    registry = _import(_VIDEO, "VIDEO_LOADER_REGISTRY").VIDEO_LOADER_REGISTRY
    failed = []
    for name, arguments in PATCHED.items():
        try:
            registry.register(name)(derive_loader(registry.name2class[name], **arguments))
        except (KeyError, AttributeError) as error:
            failed.append(f"{name} ({error})")
    if failed:
        raise _MissingError(f"not found as expected: {', '.join(failed)}")


def _enable_connector() -> None:
    from telecine.integrations.vllm.connector import make_connector

    module = _import(_CONNECTOR, "MEDIA_CONNECTOR_REGISTRY", "MediaConnector")
    _check_attributes(module.MediaConnector, "MediaConnector", _CONNECTOR_METHODS)
    module.MEDIA_CONNECTOR_REGISTRY.register(_NAME)(make_connector(module.MediaConnector))


def _enable_guard() -> None:
    from telecine.integrations.vllm.gpu_memory_guard import extend_reservation, guard_media_io

    connector = _import(_CONNECTOR, "MODALITY_IO_MAP")
    config = _import("vllm.config.multimodal", "MultiModalConfig").MultiModalConfig
    _check_attributes(config, "MultiModalConfig", ("use_gpu_video_backend",))
    connector.MODALITY_IO_MAP["video"] = guard_media_io(connector.MODALITY_IO_MAP["video"])
    config.use_gpu_video_backend = extend_reservation(config.use_gpu_video_backend)
    if default_device().startswith("cuda"):
        _import(_VIDEO, "VIDEO_LOADER_REGISTRY").VIDEO_LOADER_REGISTRY.register_gpu_codec(_NAME)


_PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "codec": (_enable_codec, 'Use the loader: --media-io-kwargs \'{"video": {"video_backend": "telecine"}}\''),
    "loader": (_enable_loader, "Decode before the request, with telecine.load, and send the frames"),
    "classes": (
        _enable_classes,
        'These models keep OpenCV; to decode with telecine, use "video_backend": "telecine" and the model\'s "policy"',
    ),
    "connector": (_enable_connector, "Leave VLLM_MEDIA_CONNECTOR unset; vLLM then reads and fetches by itself"),
    "guard": (
        _enable_guard,
        'With "device": "cuda", leave room on the GPU yourself (--mm-ipc-gpu-memory-gb, --gpu-memory-utilization)',
    ),
}
"""For each part, the function that registers it, and the alternative if that fails."""


def state() -> dict[str, Any]:
    """Register telecine, and return the state of the plugin in this process. Imports vLLM.

    Returns:
        A dict fit for JSON: ``vllm`` (its version, or None), ``parts``, ``codec_options``, ``loaders`` (how each loader
        in vLLM's registry decodes with telecine), ``connectors``, and ``chosen`` (variables of the environment).
    """
    register()
    if "vllm" in _state:
        return {"vllm": None, "parts": dict(_state)}
    codec_options = getattr(sys.modules.get(_DECODERS), "_BACKEND_OPTION_DEFAULTS", {}).get(_NAME, ())
    connectors = getattr(sys.modules.get(_CONNECTOR), "MEDIA_CONNECTOR_REGISTRY", None)
    return {
        "vllm": str(sys.modules["vllm"].__version__),
        "parts": dict(_state),
        "codec_options": sorted(codec_options),
        "loaders": _describe_loaders(),
        "connectors": sorted(getattr(connectors, "name2class", ())),
        "chosen": {name: os.environ.get(name) for name in _VARIABLES},
    }


def _describe_loaders() -> dict[str, str]:
    """Return how each loader of vLLM decodes with telecine, and the processors that are bound to it."""
    registry = importlib.import_module(_VIDEO).VIDEO_LOADER_REGISTRY
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
