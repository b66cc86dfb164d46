"""Names that fastmcp and mcp import at the top, of packages that cannot exist in the sandbox.

`cryptography` and `joserfc` have no wheel for Pyodide, and a server in a page needs neither: they serve OAuth, JWT and
sealed request state. Their names import; using one raises `Unavailable`, which says what is missing.

Invariant: the finder is last on `sys.meta_path`, so a real package wins; a name ending in `exceptions` or `errors`
holds real exception classes, so that `except InvalidTag` compiles and catches nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, Final

__all__ = ["Unavailable", "install"]

PACKAGES: Final = frozenset({"cryptography", "joserfc"})


class Unavailable(RuntimeError):
    """Something of a package was used that the sandbox does not have."""


class _Meta(type):
    """Classes that can be named, subclassed and asked for attributes, but not made."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Unavailable(
            f"{cls.__module__}.{cls.__name__} needs the package {cls.__module__.partition('.')[0]!r}, which has no "
            "build for the sandbox: JWT, OAuth and encrypted state are not available there"
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(f"{cls.__module__}.{cls.__name__}", name)

    # `X | None` in an annotation that is evaluated.
    def __or__(cls, other: Any) -> Any:
        return Any

    __ror__ = __or__


def _named(module: str, name: str) -> Any:
    if module.rpartition(".")[2] in ("exceptions", "errors"):
        return type(name, (Exception,), {"__module__": module})
    return _Meta(name, (), {"__module__": module})


class _Module(ModuleType):
    """A module in which every public name exists."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]
    __all__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _named(self.__name__, name)
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return ModuleSpec(fullname, self, origin="sandport stand-in", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute: the names come by `__getattr__`."""


class _RequestStateCodec:
    """Seals MCP request state by HMAC-SHA256 where AES-GCM is not to be had.

    Signed, not encrypted: the client can read the state it carries, and cannot change it. The key is made at first
    use, so that a memory snapshot never holds one.
    """

    PREFIX: Final = "sp1."

    def __init__(self) -> None:
        self._key: bytes | None = None

    def _tag(self, payload: bytes) -> bytes:
        import hmac
        import os

        if self._key is None:
            self._key = os.urandom(32)
        return hmac.digest(self._key, self.PREFIX.encode() + payload, "sha256")

    def seal(self, payload: bytes) -> str:
        import base64

        return self.PREFIX + base64.urlsafe_b64encode(self._tag(payload) + payload).decode().rstrip("=")

    def unseal(self, token: str) -> bytes:
        import base64
        import hmac

        from mcp.server.request_state import InvalidRequestState

        if not token.startswith(self.PREFIX):
            raise InvalidRequestState("malformed")
        text = token[len(self.PREFIX) :]
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError as exc:
            raise InvalidRequestState("malformed") from exc
        tag, payload = raw[:32], raw[32:]
        if len(tag) < 32 or not hmac.compare_digest(tag, self._tag(payload)):
            raise InvalidRequestState("seal")
        return payload


def install() -> None:
    """Put the finder last, and let `FastMCP(...)` seal request state without cryptography. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())

    import cryptography

    if not isinstance(cryptography, _Module):
        return
    from mcp.server.request_state import RequestStateSecurity

    def ephemeral(
        cls: type[RequestStateSecurity], *, ttl: float = 600.0, audience: str | None = None
    ) -> RequestStateSecurity:
        """As the original: a key of this process, never written down."""
        return cls(codec=_RequestStateCodec(), ttl=ttl, audience=audience)

    RequestStateSecurity.ephemeral = classmethod(ephemeral)  # type: ignore[method-assign, assignment]
