"""The page's files and `/v1/render` as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    JSON,
    Operation,
    Surface,
    array,
    integer,
    number,
    opened,
    text,
    word,
)
from mmserve.server.openai.schema import CHAT
from mmserve.server.page.files import page_types

__all__ = ["FILES", "SURFACE"]

_COUNT = integer(0, 2**53)
_PIECE = opened(
    {"kind": word("text", "picture", "frame"), "start": _COUNT, "num_tokens": _COUNT}
)
_CLIP = opened({"timestamps_s": array(number(0, 1e9)), "note": {"type": ["string", "null"]}})

SURFACE: Surface = {
    "/v1/render": {
        "post": Operation(
            summary="The prompt that a chat body has, piece by piece, not answered.",
            body=CHAT,
            answers={
                JSON: opened(
                    {
                        "object": word("prompt"),
                        "model": text(),
                        "token_ids": array(_COUNT),
                        "text": text(),
                        "pieces": array(_PIECE),
                        "clips": array(_CLIP),
                        "usage": opened(
                            {
                                "prompt_tokens": _COUNT,
                                "image_tokens": _COUNT,
                                "video_tokens": _COUNT,
                            }
                        ),
                    }
                )
            },
            refusals=("bad", "absent", "large", "behind", "late"),
        )
    }
}
"""What is served with the page and without it."""

FILES: Surface = {
    path: {
        "get": Operation(
            summary=f"The web page's file {path.rpartition('/')[2] or 'index.html'}.",
            answers={media_type.partition(";")[0]: {"type": "string"}},
            needs_key=False,
        )
    }
    for path, media_type in page_types().items()
}
"""The page itself."""
