"""Early supervision of clips: inside the decoder, what changed and in which frame.

Answers alone teach it too slowly, since nothing is said before the last layer. So the patches
of a clip must show, after HINT_LAYER layers, the number of their frame (in the direction of
that digit's embedding) and whether their cell differs from the frame before (in one fixed
direction). No weights are added, and the exported model does not know of it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.model import WIDTH
from training.packing import Pack

HINT_LAYER = 2
_CHANGED = functional.normalize(torch.randn(WIDTH, generator=torch.manual_seed(7)), dim=0)


def changed_cells(pack: Pack, labels: Tensor) -> Tensor:
    """[n, 9] bool: whether a cell of picture n differs from the frame before."""
    differs = (labels != labels.roll(1, 0)).any(-1)
    return differs & (pack.frames > 1)[:, None]


def hint_loss(
    model: nn.Module, pack: Pack, hidden: Tensor, labels: Tensor, digit_ids: Tensor
) -> Tensor:
    """How badly the patches tell their frame's number and whether their cell changed.

    Args:
        model: The whole model.
        pack: Clips only, of fewer than 10 frames.
        hidden: [R, T, WIDTH] float32, the states after HINT_LAYER layers.
        labels: [n, 9, 6] int64, the truth of each picture.
        digit_ids: int64 [10], the tokens of the digits.
    """
    patches = hidden[pack.ids == model.config.image_token_id]
    patches = functional.rms_norm(patches, (WIDTH,))
    digits = model.model.language_model.embed_tokens.weight.detach()[digit_ids]
    frames = pack.frames[pack.patches[:, 0]]
    frame_loss = functional.cross_entropy(
        patches @ functional.normalize(digits, dim=1).T, frames
    )
    row, column = pack.patches[:, 1] // 6, pack.patches[:, 1] % 6
    cells = (row // 2) * 3 + column // 2
    changed = changed_cells(pack, labels)[pack.patches[:, 0], cells]
    change_loss = functional.binary_cross_entropy_with_logits(
        patches @ _CHANGED - 2, changed.float(), pos_weight=torch.tensor(4.0)
    )
    return 0.1 * frame_loss + change_loss
