"""The page's files and `/v1/render` as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.chat.schema import CHAT
from mmserve.server.describe import schema as shape
from mmserve.server.page.files import page_types

__all__ = ["FILES", "SURFACE"]

_COUNT = shape.integer(0, 2**53)
_PIECE = shape.opened(
    {"kind": shape.word("text", "picture", "frame"), "start": _COUNT, "num_tokens": _COUNT}
)
_CLIP = shape.opened(
    {"timestamps_s": shape.array(shape.number(0, 1e9)), "note": {"type": ["string", "null"]}}
)

SURFACE: shape.Surface = {
    "/v1/render": {
        "post": shape.Operation(
            summary="The prompt that a chat body has, piece by piece, not answered.",
            body=CHAT,
            answers={
                shape.JSON: shape.opened(
                    {
                        "object": shape.word("prompt"),
                        "model": shape.text(),
                        "token_ids": shape.array(_COUNT),
                        "text": shape.text(),
                        "pieces": shape.array(_PIECE),
                        "clips": shape.array(_CLIP),
                        "usage": shape.opened(
                            {
                                "prompt_tokens": _COUNT,
                                "image_tokens": _COUNT,
                                "video_tokens": _COUNT,
                            }
                        ),
                    }
                )
            },
            refusals=("bad", "absent", "behind", "late"),
        )
    }
}
"""What is served with the page and without it."""

FILES: shape.Surface = {
    path: {
        "get": shape.Operation(
            summary=f"The web page's file {path.rpartition('/')[2] or 'index.html'}.",
            answers={media_type.partition(";")[0]: {"type": "string"}},
            needs_key=False,
        )
    }
    for path, media_type in page_types().items()
}
"""The page itself."""
