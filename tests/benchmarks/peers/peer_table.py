"""Who takes part, where each one's training is written down, and what it cannot be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata


@dataclass(frozen=True)
class Peer:
    """A trainer."""

    module: str
    function: str
    distributions: tuple[str, ...] = ()
    """What has to be installed; the first one names the version."""
    near: float | None = None
    """How far the mean loss may end from the raw loop's, as a share of it; None: with the same bits."""
    cannot: dict[str, str] = field(default_factory=dict)
    """By workload: why it does not take part."""

    def versions(self) -> dict[str, str]:
        """Of what is installed; raises PackageNotFoundError otherwise."""
        return {name: metadata.version(name) for name in self.distributions}


PEERS = {
    "raw": Peer("peer_hand", "raw"),
    "raw, naive": Peer("peer_hand", "naive"),
    "raw, fused": Peer("peer_hand", "fused", near=0.03),
    "notebook_learner": Peer("peer_learner", "train", ("notebook_learner",)),
    "notebook_learner, fused": Peer("peer_learner", "fused", ("notebook_learner",), near=0.03),
    "Fabric": Peer("peer_hand", "fabric", ("lightning",)),
    "Accelerate": Peer("peer_hand", "accelerate", ("accelerate",)),
    "Ignite": Peer("peer_ignite", "train", ("pytorch-ignite",)),
    "skorch": Peer(
        "peer_skorch", "train", ("skorch",), cannot={"W4": "it has neither accumulation nor bf16 of its own"}
    ),
    "Poutyne": Peer("peer_poutyne", "train", ("poutyne",), cannot={"W4": "it has no bf16 of its own"}),
    "torchtnt": Peer("peer_torchtnt", "train", ("torchtnt",)),
    "Transformers": Peer("peer_transformers", "train", ("transformers", "accelerate")),
    "Lightning": Peer("peer_lightning", "train", ("lightning", "torchmetrics")),
    "fastai": Peer(
        "peer_fastai", "train", ("fastai",), cannot={"W4": "its mixed precision is for GPUs alone"}
    ),
    # Its Adam has epsilon elsewhere in the formula.
    "Keras": Peer(
        "peer_keras",
        "train",
        ("keras",),
        near=0.03,
        cannot={"W4": "a torch module in its wrapper does not follow its bf16 policy"},
    ),
}
