"""Records tokens per call of other projects' compiled drafting code on the shared transcripts, measured once by hand.

Twenty rows per set in Llama 3's tokens, which are not the rows that `benchmarks.replay` selects. With so few rows, a
set's figure varies by a tenth or more. ArcticInference's suffix tree had its best setting (depth 64, factor 4: 5 to 10
nodes per call). SGLang's trie and suffix automaton had the prompt as corpus and 32 nodes, which is not how it ships.
"""

from __future__ import annotations

PEERS = ("Arctic", "SGLang")

_BY_TASK: dict[str, list[tuple[str, str, float, float]]] = {  # set, prefix of the model's name, figure of each peer
    "gec": [
        ("gec_conll2014", "Llama-4", 2.48, 2.94),
        ("gec_conll2014", "Mistral", 2.59, 3.06),
        ("gec_conll2014", "claude", 3.28, 4.13),
        ("gec_conll2014", "gpt-4.1", 3.31, 4.04),
        ("gec_conll2014", "gpt-5-mini", 1.96, 2.21),
    ],
    "gec_document": [
        ("gec_conll2014_doc", "Llama-4", 3.40, 4.32),
        ("gec_conll2014_doc", "Mistral", 3.22, 4.03),
        ("gec_conll2014_doc", "claude", 4.05, 5.14),
        ("gec_conll2014_doc", "gpt-4.1", 3.79, 4.76),
        ("gec_conll2014_doc", "gpt-5-mini", 2.44, 2.83),
    ],
    "code_edit": [
        ("canitedit", "Qwen2.5-Coder-3B", 7.09, 6.89),
        ("canitedit", "Qwen2.5-Coder-7B", 6.71, 7.01),
    ],
    "multiturn_edit": [
        ("copyspec_gsm", "", 3.06, 3.06),
        ("copyspec_redundant", "Qwen2.5-32B", 2.28, 2.12),
        ("copyspec_redundant", "Qwen2.5-72B", 2.94, 2.64),
        ("copyspec_redundant", "Qwen2.5-7B", 2.46, 2.13),
    ],
    "rag": [
        ("expertqa", "", 1.54, 1.59),
        ("llma_rag", "", 3.40, 4.06),
        ("specbench_rag", "", 1.73, 1.73),
    ],
    "summarization": [
        ("llma_cnndm", "", 1.87, 2.14),
        ("pld_cnndm", "", 2.24, 2.51),
        ("specbench_summarization", "", 2.42, 2.75),
        ("tiiiger_news", "human", 1.33, 1.40),
        ("tiiiger_news", "text-davinci-002", 2.03, 2.25),
    ],
    "chat": [
        ("copyspec_mtbench", "", 1.49, 1.31),
        ("medusa_mtbench", "", 1.65, 1.42),
        ("pld_mtbench", "", 1.73, 1.47),
        ("rest_mtbench", "", 1.66, 1.39),
        ("specbench_mtbench", "", 1.80, 1.52),
        ("specbench_qa", "", 1.17, 1.05),
    ],
}


def quoted(key: tuple[str, str, str]) -> dict[str, float]:
    """Return the figures of a (task, set, model) by peer; empty if there are none."""
    task, name, model = key
    for other, beginning, *values in _BY_TASK.get(task, []):
        if other == name and model.startswith(beginning):
            return dict(zip(PEERS, values, strict=True))
    return {}
