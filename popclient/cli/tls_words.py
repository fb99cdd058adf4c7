"""The library's sentences about TLS, which name its arguments, in the options of the command line."""

from __future__ import annotations

from typing import Final

_TRUST: Final = "with --ca FILE, or take whatever it shows with --ca any"
_OPTIONS: Final = (
    ("; set tls if it speaks TLS", f"; if it speaks TLS, name the CA, or the server's own certificate, {_TRUST}"),
    ("with Tls(ca=…), or take whatever it shows with Tls(insecure=True)", _TRUST),
    ("; leave tls out", "; leave out --ca, POPMQ_CA and https://, or start it with --tls permissive"),
    ("or give it as Tls(server_name=…)", "or take whatever it shows with --ca any"),
    ("with Tls(cert=…, key=…)", "with --client-cert FILE --client-key FILE"),
    (", or give its bytes", ""),
)


def in_options(sentence: str) -> str:
    """The sentence as a user of the command line can act on it; any other is left as it is."""
    for argument, option in _OPTIONS:
        sentence = sentence.replace(argument, option)
    return sentence


def is_about_tls(sentence: str) -> bool:
    """Whether somebody is there, who was not understood."""
    return "TLS" in sentence or "certificate" in sentence
