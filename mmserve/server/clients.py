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
from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.core import ServerConfig

__all__ = ["Caller", "caller_of", "client_of", "key_of", "may_enter"]

_MARKS = ("key:", "salt:", "user:")
_DIGEST_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Caller:
    """What the headers of a request say of who sent it.

    Args:
        owner: whose own key was sent; "" for nobody's.
        key: a digest of the key that was sent; "" for none, and for one that all must send.
        names: owners of all keys there are, whom no `user` may pass for.
    """

    owner: str = ""
    key: str = ""
    names: frozenset[str] = frozenset()


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
    return f"salt:{_digest(b'salt', cache_salt.encode())}" if cache_salt else ""


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
    return Caller(owner, "" if is_named else _digest(b"key", key), names)


def may_enter(key: bytes, config: ServerConfig) -> bool:
    """Whether a request with this key is served: with none configured, every one is. Pure."""
    if not config.api_key and not config.client_keys:
        return True
    return caller_of(key, config).owner != "" or _is_shared(key, config)


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The API key in raw headers: a bearer token, else all of `x-api-key`, else b"". Pure."""
    named = dict(headers)
    kind, _, key = named.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else named.get(b"x-api-key", b"")


def _is_shared(key: bytes, config: ServerConfig) -> bool:
    return bool(config.api_key) and hmac.compare_digest(key, (config.api_key or "").encode())


def _digest(kind: bytes, secret: bytes) -> str:
    return hashlib.sha256(b"mmserve %b %b" % (kind, secret)).hexdigest()[:_DIGEST_CHARACTERS]
