"""The tree of errors: built-in base classes, exit codes and HTTP statuses."""

from __future__ import annotations

import pytest

from telecine import errors

ALL = [getattr(errors, name) for name in errors.__all__]
TREE = " ─├└│"
BAD_INPUT = {"OptionsError", "SourceError", "NoVideoError", "DecodeError", "UnsupportedVideoError", "LimitError"}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_tree_of_the_module_docstring(kind: type[errors.TelecineError]) -> None:
    assert issubclass(kind, errors.TelecineError)
    assert errors.__doc__ is not None
    line = next(line for line in errors.__doc__.splitlines() if line.strip(TREE).startswith(kind.__name__))
    for base in (ValueError, ImportError, RuntimeError, TimeoutError):
        if base in kind.__bases__:
            assert f"({base.__name__})" in line


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_only_bad_input_is_a_value_error_and_a_client_error(kind: type[errors.TelecineError]) -> None:
    """Serving engines turn a ValueError into HTTP 400."""
    assert issubclass(kind, ValueError) == (kind.__name__ in BAD_INPUT)
    if kind.__name__ in BAD_INPUT:
        assert 400 <= kind.http_status < 500


def test_overload_has_other_codes_than_a_request_that_never_succeeds() -> None:
    assert issubclass(errors.OverloadedError, RuntimeError)
    assert errors.OverloadedError.http_status == 503
    assert errors.OverloadedError.exit_code != errors.LimitError.exit_code


def test_an_unsupported_video_is_not_a_missing_library() -> None:
    assert not issubclass(errors.UnsupportedVideoError, ImportError)
    assert not issubclass(errors.BackendUnavailable, ValueError)
