"""Makes torchvision importable beside a PyTorch without CUDA.

Its wheel for CUDA holds operators that do not load there. Importing it fails for one reason only: it tells PyTorch what
shapes those operators give, and PyTorch does not know them. None of them has to do with what is tested here, so their
shapes are left out.
"""

from __future__ import annotations

from typing import Any

__all__ = ["prepare"]


def prepare() -> None:
    """Import torchvision, where it is installed, without its compiled operators if they do not load."""
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
