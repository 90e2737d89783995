"""The names of the tensors of layers for multi-token prediction, as the checkpoints of each family have them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """Names of the tensors of one family's first layer; {layers} stands for the model's number of layers."""

    families: str
    block: str
    """Prefix of those of the decoder layer."""
    projection: str
    token_norm: str
    state_norm: str
    norm: str | None
    """None: the model's own last norm, which the states that the layer reads have not passed."""
    states_first: bool = False
    """Whether the projection reads the state before the embedding."""

    def of(self, layers: int) -> MtpLayout:
        """The names in a model of so many layers."""

        names = ("block", "projection", "token_norm", "state_norm", "norm")
        held = {name: getattr(self, name) for name in names}
        return replace(self, **{name: each and each.replace("{layers}", str(layers)) for name, each in held.items()})

    def parts(self) -> dict[str, str]:
        """The tensors beside the decoder layer, by part."""
        held = {"projection": self.projection, "token_norm": self.token_norm, "state_norm": self.state_norm}
        return held if self.norm is None else held | {"norm": self.norm}

    def holds(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the layer."""
        return name.startswith(self.block) or name in self.parts().values()


_DEEPSEEK = "model.layers.{layers}."

LAYOUTS = (
    MtpLayout(
        "Qwen3-Next, Qwen3.5",
        "mtp.layers.0.",
        "mtp.fc.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "mtp.norm.weight",
    ),
    MtpLayout(
        "DeepSeek-V3, GLM-4 MoE",
        _DEEPSEEK,
        f"{_DEEPSEEK}eh_proj.weight",
        f"{_DEEPSEEK}enorm.weight",
        f"{_DEEPSEEK}hnorm.weight",
        f"{_DEEPSEEK}shared_head.norm.weight",
    ),
    MtpLayout(
        "MiMo",
        "model.mtp_layers.0.",
        "model.mtp_layers.0.input_proj.weight",
        "model.mtp_layers.0.token_layernorm.weight",
        "model.mtp_layers.0.hidden_layernorm.weight",
        "model.mtp_layers.0.final_layernorm.weight",
        states_first=True,
    ),
    MtpLayout(
        "Ernie 4.5",
        "model.mtp_block.0.",
        "model.mtp_linear_proj.0.weight",
        "model.mtp_emb_norm.0.weight",
        "model.mtp_hidden_norm.0.weight",
        None,
    ),
)
"""As the families' checkpoints are published. Their training code says in what order the projection reads, and of
which states."""
