"""Settings of the service, its tokens and its limits."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from telecine.errors import OptionsError
from telecine.limits import Limits
from telecine.live.captions import DEFAULT_PROMPT, FrameForm

__all__ = ["ServerConfig", "is_loopback", "read_tokens"]

_MIN_TOKEN_CHARACTERS = 16


@dataclass(frozen=True)
class ServerConfig:
    """Settings of the service."""

    host: str = "127.0.0.1"
    port: int = 8090
    database: Path = Path("telecine.sqlite")
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Owner of each token. Empty for a service of the loopback interface that everybody on the machine may use."""
    allowed_hosts: frozenset[str] | None = None
    """Hosts that streams may be from. None allows any host without tokens, and none with them."""
    allow_private_hosts: bool = False
    """True if streams may be from hosts of a private network."""
    files: Path | None = None
    """Folder whose files may be played as streams; None if no file may."""
    caption_url: str | None = None
    """URL of the caption server; None for events without text."""
    model: str = ""
    """Model of streams that name none."""
    prompt: str = DEFAULT_PROMPT
    frames_as: FrameForm = "video"
    max_streams: int = 16
    """Streams of one owner."""
    max_clients: int = 256
    """Open event streams of one owner."""
    max_decodes: int = 4
    """Videos of one owner that are decoded at once."""
    max_body_bytes: int = 256 << 20
    max_output_bytes: int = 512 << 20
    """Bytes of the frames that one request decodes."""
    max_events: int = 1000
    """Events of a stream that are kept."""
    decode_timeout: float = 120.0

    def __post_init__(self) -> None:
        if not self.tokens and not is_loopback(self.host):
            raise OptionsError(
                f"host is {self.host!r}, which other machines can reach, and there are no tokens; "
                "give --token-file, or a loopback address"
            )
        if self.caption_url is not None and not self.model:
            raise OptionsError("the caption server has no model; give --model")

    @property
    def stream_hosts(self) -> frozenset[str] | None:
        """Hosts that streams may be from; None for any."""
        return frozenset() if self.allowed_hosts is None and self.tokens else self.allowed_hosts

    @property
    def limits(self) -> Limits:
        """Limits of a request."""
        return Limits(
            max_bytes=self.max_body_bytes,
            max_output_bytes=self.max_output_bytes,
            # without an allow-list the caller of the loopback interface is trusted
            allow_private_hosts=self.allow_private_hosts or self.stream_hosts is None,
        )

    def owner_of(self, authorization: str | None) -> str | None:
        """Return the owner of a header ``Authorization``, "" if there are no tokens, None if access is refused."""
        if not self.tokens:
            return ""
        scheme, _, given = (authorization or "").partition(" ")
        owner = None
        for token, name in self.tokens.items():  # all of them, in constant time each
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                owner = name
        return owner if scheme.lower() == "bearer" else None


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is the machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_tokens(path: Path) -> dict[str, str]:
    """Return the owner of each token in a file of lines "OWNER TOKEN". Raises OptionsError."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"the token file cannot be read: {type(error).__name__}") from None
    if not lines or any(len(line) != 2 or len(line[1]) < _MIN_TOKEN_CHARACTERS for line in lines):
        raise OptionsError(
            "the token file must have lines OWNER TOKEN, with tokens of "
            f"{_MIN_TOKEN_CHARACTERS} characters or more; openssl rand -hex 32 makes one"
        )
    return {token: owner for owner, token in lines}
