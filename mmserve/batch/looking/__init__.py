"""Prompts looked at without being answered: by the engine itself, or by a server.

    Request -> Renderer.render -> PromptLook (token ids, spans of media, small pictures)

Called by `batch.forecast` for counts and by `batch.report` for pictures.
"""

from mmserve.batch.looking.renderer import Renderer
from mmserve.batch.looking.server import ServerRenderer

__all__ = ["Renderer", "ServerRenderer"]
