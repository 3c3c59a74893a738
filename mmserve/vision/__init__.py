"""Media: from bytes to identity, size and tokens without decoding; pixels only on demand.

    part -> sources, fetch (guards) -> bytes -> probe / video (headers) -> identity -> MediaItem
                                                                              |
    on_ready(inputs) <- processors <- image / video (pixels) <- decoding <- request_pixels

Owns: fetching and its guards, decoders, the decode pool. Pillow and PyAV are used only here.
Called by: `prompt` and the engine's workers (`resolve`), the engine's loop (`request_pixels`).
"""

from mmserve.vision.decoding import OnReady
from mmserve.vision.drawing import draw_ledger
from mmserve.vision.families import load_processor
from mmserve.vision.families.llava import ImageProcessor, ImageSteps
from mmserve.vision.fetch import Fetcher
from mmserve.vision.header import SUPPORTED_FORMATS
from mmserve.vision.items import MediaItem, ResolvedMedia
from mmserve.vision.ledger import FeatureLedger
from mmserve.vision.looking import Sight, look_at
from mmserve.vision.plane import MediaCounters, MediaPlane
from mmserve.vision.processor import Bounds, FrameFacts, ItemPlan, Processor, Recipe
from mmserve.vision.sources import remote_host

__all__ = [
    "SUPPORTED_FORMATS",
    "Bounds",
    "FeatureLedger",
    "Fetcher",
    "FrameFacts",
    "ImageProcessor",
    "ImageSteps",
    "ItemPlan",
    "MediaCounters",
    "MediaItem",
    "MediaPlane",
    "OnReady",
    "Processor",
    "Recipe",
    "ResolvedMedia",
    "Sight",
    "draw_ledger",
    "load_processor",
    "look_at",
    "remote_host",
]
