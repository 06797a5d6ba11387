"""Makes a torchvision built for CUDA importable with a PyTorch without CUDA.

Its compiled operators do not load there. The import fails only because torchvision registers the output shapes of those
operators, which PyTorch does not know. The tests use none of them, so the registration is skipped.
"""

from __future__ import annotations

from typing import Any

__all__ = ["prepare"]


def prepare() -> None:
    """Import torchvision, if it is installed, without its compiled operators if they do not load."""
    import torch

    real = torch.library.register_fake

    def lenient(name: str, *rest: Any, **options: Any) -> Any:
        try:
            registered = real(name, *rest, **options)
        except RuntimeError:
            return rest[0] if rest else (lambda function: function)

        def decorate(function: Any) -> Any:
            try:
                return registered(function)
            except RuntimeError:
                return function

        return registered if rest else decorate

    torch.library.register_fake = lenient
    try:
        import torchvision  # noqa: F401
    except (ImportError, OSError):
        pass
    finally:
        torch.library.register_fake = real
