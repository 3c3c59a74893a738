"""The OpenAPI document: every route with its body, parameters, answers, errors and keys."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from typing import Any

from mmserve.core import ServerConfig
from mmserve.server.admin import ADMIN_PATHS
from mmserve.server.describe.schema import JSON, Operation, Surface
from mmserve.server.errors import ANSWERS, is_anthropic
from mmserve.server.guard import OPEN_PATHS
from mmserve.server.service import ID_HEADER

__all__ = ["document", "shown_path"]

_CONVERTER = re.compile(r"\{(\w+):\w+\}")
_EVERYWHERE = ("busy", "failed", "stopping")
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "maxLength": 300},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string", "maxLength": 300},
            },
            "required": ["type", "message"],
        },
        "request_id": {"type": ["string", "null"]},
    },
    "required": ["type", "error", "request_id"],
}
_ID = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,128}$"}
_ID_PARAMETER = {
    "name": ID_HEADER,
    "in": "header",
    "required": False,
    "description": "The request's id, which the answer repeats; one is made if none is sent.",
    "schema": _ID,
}
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of this server."},
    "keyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "adminKey": {"type": "http", "scheme": "bearer", "description": "The operator's key."},
}


def document(surfaces: Iterable[Surface], config: ServerConfig) -> dict[str, Any]:
    """All operations of the surfaces, as a server of this config guards them. Pure."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for surface in surfaces:
        for path, methods in surface.items():
            shown = paths.setdefault(shown_path(path), {})
            for method, operation in methods.items():
                shown[method] = _operation(path, method, operation, config)
                if operation.body is not None and "title" in operation.body:
                    schemas[operation.body["title"]] = operation.body
    return {
        "openapi": "3.1.0",
        "info": {"title": "mmserve", "version": importlib.metadata.version("mmserve")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "parameters": {"RequestId": _ID_PARAMETER},
            "securitySchemes": _SCHEMES,
        },
    }


def shown_path(path: str) -> str:
    """A route's path as the document spells it. Pure."""
    return _CONVERTER.sub(r"{\1}", path)


def _operation(
    path: str, method: str, operation: Operation, config: ServerConfig
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{method}{path}").strip("_"),
        "parameters": [{"$ref": "#/components/parameters/RequestId"}, *operation.parameters],
        "responses": _responses(path, operation),
        "security": _security(path, config) if _needs_key(path, operation) else [],
    }
    body = operation.body
    if body is not None and "title" in body:
        body = {"$ref": f"#/components/schemas/{body['title']}"}
    kinds = {JSON: body, "multipart/form-data": operation.form}
    content = {kind: {"schema": schema} for kind, schema in kinds.items() if schema is not None}
    if content:
        told["requestBody"] = {"required": True, "content": content}
    return told


def _responses(path: str, operation: Operation) -> dict[str, Any]:
    words = [*operation.refusals, *_EVERYWHERE]
    if operation.body is not None or operation.form is not None:
        words += ("large", "slow")
    if _needs_key(path, operation):
        words.append("key")
    if path in ADMIN_PATHS:
        words.append("admin")
    status, meaning = ANSWERS["ok"]
    success: dict[str, Any] = {"description": meaning, "headers": _headers("ok")}
    if operation.answers:
        success["content"] = {
            kind: {"schema": schema} for kind, schema in operation.answers.items()
        }
    found = {str(status): success}
    form = "AnthropicError" if is_anthropic(path) else "Error"
    for word in dict.fromkeys(words):
        status, meaning = ANSWERS[word]
        found[str(status)] = {
            "description": meaning,
            "headers": _headers(word),
            "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{form}"}}},
        }
    return dict(sorted(found.items()))


def _needs_key(path: str, operation: Operation) -> bool:
    return operation.needs_key and path not in OPEN_PATHS


def _headers(word: str) -> dict[str, Any]:
    headers: dict[str, Any] = {ID_HEADER: {"schema": _ID}}
    if word == "busy":
        headers["Retry-After"] = {"schema": {"type": "string", "pattern": "^[0-9]+$"}}
    if word == "key":
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
    return headers


def _security(path: str, config: ServerConfig) -> list[dict[str, list[str]]]:
    if path in ADMIN_PATHS:
        needs_one = config.admin_key or config.api_key or config.client_keys
        found: list[dict[str, list[str]]] = [{"adminKey": []}]
    else:
        needs_one = config.api_key or config.client_keys
        found = [{"key": []}, {"keyHeader": []}, {"adminKey": []}]
    return found if needs_one else [*found, {}]
