"""Who a client is: whoever shares one queue and one name in the metrics.

    the API key is one of `client_keys`     the name it has there
    the request says `user`                 that text
    some other API key was sent             "key:" and a digest of it
    the request says `cache_salt`           "salt:" and a digest of it
    nothing of this                         "", all of whom share a queue

A key that everybody must send tells nobody apart, and one that is not checked is only a word;
so `user` goes before both, and a key of one's own goes before `user`: its holder gets no more
queues by making names up. Keys and salts are secrets: a digest stands for them wherever a
client is named.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from mmserve.core import ServerConfig

__all__ = [
    "Caller",
    "caller_of",
    "client_of",
    "digest",
    "is_admin",
    "is_loopback",
    "key_of",
    "may_enter",
    "scoped_salt",
]

_MARKS = ("key:", "salt:", "user:")
_DIGEST_CHARACTERS = 12
_NAMESPACE_CHARACTERS = 32
_PEPPER = secrets.token_bytes(16)  # so that no namespace can be guessed


@dataclass(frozen=True, slots=True)
class Caller:
    """What the headers of a request say of who sent it.

    Args:
        owner: whose own key was sent; "" for nobody's.
        key: a digest of the key that was sent; "" for none, and for one that all must send.
        names: owners of all keys there are, whom no `user` may pass for.
        namespace: the part of the cache that this key has for itself; "" for the common one.
    """

    owner: str = ""
    key: str = ""
    names: frozenset[str] = frozenset()
    namespace: str = field(default="", repr=False)


def client_of(caller: Caller, *, user: str = "", cache_salt: str = "") -> str:
    """The name of a request's client, by the rule above.

    A `user` that reads like the name of a key or a salt gets a mark, so that nobody is charged
    for what others do. Pure. The name holds neither key nor salt.
    """
    if caller.owner:
        return caller.owner
    if user:
        return f"user:{user}" if user.startswith(_MARKS) or user in caller.names else user
    if caller.key:
        return f"key:{caller.key}"
    return f"salt:{digest(b'salt', cache_salt.encode())}" if cache_salt else ""


def caller_of(key: bytes, config: ServerConfig) -> Caller:
    """Who sends this key; b"" for none. Pure.

    Compares with every key in constant time, so that the time tells nothing of one.
    """
    owner = ""
    for name, own in config.client_keys:
        if hmac.compare_digest(key, own.encode()):
            owner = name
    is_named = owner or not key or _is_shared(key, config)
    names = frozenset(name for name, _ in config.client_keys)
    namespace = ""
    if config.namespace_by_key and key and not _is_shared(key, config):
        namespace = digest(b"namespace " + _PEPPER, key, _NAMESPACE_CHARACTERS)
    return Caller(owner, "" if is_named else digest(b"key", key), names, namespace)


def scoped_salt(caller: Caller, cache_salt: str) -> str:
    """The salt under which a caller's requests are cached, apart from all other keys'. Pure."""
    return f"{caller.namespace}:{cache_salt}" if caller.namespace else cache_salt


def may_enter(key: bytes, config: ServerConfig) -> bool:
    """Whether a request with this key is served: with none configured, every one is. Pure."""
    if not config.api_key and not config.client_keys:
        return True
    return caller_of(key, config).owner != "" or _is_shared(key, config)


def is_admin(key: bytes, config: ServerConfig) -> bool:
    """Whether a request with this key may do what only the operator may. Pure.

    Without `admin_key`, `api_key` is the operator's; without any key, everybody is the operator
    of a server that only its own machine can reach.
    """
    own = config.admin_key or config.api_key
    if own:
        return hmac.compare_digest(key, own.encode())
    return not config.client_keys and is_loopback(config.host)


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is the machine itself. Pure."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The API key in raw headers: a bearer token, else all of `x-api-key`, else b"". Pure."""
    named = dict(headers)
    kind, _, key = named.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else named.get(b"x-api-key", b"")


def _is_shared(key: bytes, config: ServerConfig) -> bool:
    """Whether this key names nobody: it is the one that all have, or the operator's."""
    keys = [own.encode() for own in (config.api_key, config.admin_key) if own]
    found = [hmac.compare_digest(key, own) for own in keys]
    return any(found)


def digest(kind: bytes, secret: bytes, num_characters: int = _DIGEST_CHARACTERS) -> str:
    """Hexadecimal digits that stand for a secret; `kind` keeps uses apart. Pure."""
    return hashlib.sha256(b"mmserve %b %b" % (kind, secret)).hexdigest()[:num_characters]
