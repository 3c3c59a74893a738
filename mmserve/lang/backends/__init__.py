"""Who answers a program's calls: an engine in this process, a server of ours, or an API.

statement -> core.Request -> Backend.start -> Call.outputs -> core.Output

The port hides which; engine and server give the same answers, an API says what it cannot do.
Used by the language's own modules only.
"""

from mmserve.lang.backends.anthropic import Anthropic
from mmserve.lang.backends.client import ClientBackend
from mmserve.lang.backends.endpoint import RuntimeEndpoint
from mmserve.lang.backends.litellm import LiteLLM
from mmserve.lang.backends.openai import OpenAI
from mmserve.lang.backends.port import Backend, Call

__all__ = [
    "Anthropic",
    "Backend",
    "Call",
    "ClientBackend",
    "LiteLLM",
    "OpenAI",
    "RuntimeEndpoint",
]
