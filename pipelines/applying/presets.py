"""How models merge an edit into a file: the published formats of apply models, and an instruction for all others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..instructions import fill


@dataclass(frozen=True, slots=True)
class ApplyPreset:
    """The prompt of a kind of model, with `{code}`, `{update}` and perhaps `{instruction}`."""

    prompt: str
    system: str | None = None
    tag: str | None = None  # around the file in the answer

    def filled(self, code: str, update: str, instruction: str) -> str:
        """The prompt. Without an instruction, the tags for it are left out."""
        prompt = self.prompt if instruction else re.sub(r"<instruction>.*?</instruction>\n", "", self.prompt)
        return fill(prompt, code=code, update=update, instruction=instruction).lstrip("\n")

    def answered(self, content: str) -> str:
        """The answer without the tags around the file, as far as it has them."""
        if self.tag is None or f"<{self.tag}>" not in content:
            return content
        return content.partition(f"<{self.tag}>")[2].rpartition(f"</{self.tag}>")[0].strip("\n")


_MORPH = ApplyPreset("<instruction>{instruction}</instruction>\n<code>{code}</code>\n<update>{update}</update>")
PRESETS: Mapping[str, ApplyPreset] = {
    "morph": _MORPH,  # docs.morphllm.com
    "relace": _MORPH,  # the same, as OpenRouter documents it
    "fastapply": ApplyPreset(  # huggingface.co/Kortix/FastApply-7B-v1.0
        "Merge all changes from the <update> snippet into the <code> below.\n"
        "- Preserve the code's structure, order, comments, and indentation exactly.\n"
        "- Output only the updated code, enclosed within <updated-code> and </updated-code> tags.\n"
        "- Do not include any additional text, explanations, placeholders, ellipses, or code fences.\n\n"
        "<code>{code}</code>\n\n<update>{update}</update>\n\nProvide the complete updated code.",
        "You are a coding assistant that helps merge code updates, ensuring every modification is fully integrated.",
        "updated-code",
    ),
}
MERGE = ApplyPreset(
    "{instruction}\n\nMake the edit below in the file below. The edit shows the lines that change, with some lines of "
    "the file around them; comments such as '... existing code ...' stand for lines that stay. Answer with the whole "
    "new file and nothing else: copy every other line exactly, and leave none out.\n\n"
    "<edit>\n{update}\n</edit>\n\n<file>\n{code}\n</file>"
)
FOLLOW = ApplyPreset(
    "{instruction}\n\nAnswer with the whole new file and nothing else: copy every line that stays exactly, and leave "
    "none out.\n\n{code}"
)


def check_preset(name: str) -> str:
    """Return `name`. Raises ValueError if there is no such preset."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} must be one of {', '.join(PRESETS)}")
    return name
