"""What a console needs to know: its server, and by which names browsers may address it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from popclient.config import ClientConfig

DEFAULT_ADDRESS: Final = "127.0.0.1:8082"
LISTED_MAX: Final = 1_000  # topics or groups on one page


@dataclass(frozen=True, slots=True)
class Settings:
    """A console's settings.

    server: how to reach the server. Its credentials are not used: each visitor signs in, where the server has users.
    is_public: other machines reach the console. A server without users is then not shown.
    hosts: names of this console besides localhost and IP addresses, in lower case, without ports.
    any_host: any name is the console's; for a server with users, where a stranger's page has no session.
    read_only: no page changes anything.
    must_sign: whether callers of the server must sign; None: ask it.
    sample_s: seconds between two looks at the server's counts, at least.
    idle_s, session_s: a session ends after so many seconds without a request by a person, and after so many in total.
    """

    server: ClientConfig
    is_public: bool = False
    hosts: frozenset[str] = field(default_factory=frozenset)
    any_host: bool = False
    read_only: bool = False
    must_sign: bool | None = None
    sample_s: float = 5.0
    idle_s: float = 30 * 60.0
    session_s: float = 12 * 3_600.0

    def config_of(self, access_key: str = "", secret: str = "") -> ClientConfig:
        """The config of one visitor; without a key, of one who does not sign."""
        config = replace(self.server, access_key=access_key, access_secret=secret, session_token="", tracing="off")
        if not access_key:
            # An empty key is read from the environment; no visitor may act as the user who started the console.
            object.__setattr__(config, "access_key", "")
            object.__setattr__(config, "access_secret", "")
        return config
