"""Media items as the prompt room sees them."""

from dataclasses import dataclass

from mmserve.core import MediaLayout


@dataclass(frozen=True)
class Item:
    """A picture or frame."""

    name: str
    num_tokens: int = 3
    kind: str = "image"
    timestamp_s: float | None = None
    is_atomic: bool = False

    @property
    def layout(self) -> MediaLayout:
        """So many placeholders."""
        return MediaLayout((self.num_tokens,), is_atomic=self.is_atomic)

    @property
    def digest(self) -> bytes:
        """Identity made of the name."""
        return self.name.encode().ljust(16, b".")
