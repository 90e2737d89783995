"""Gets files of public repositories at fixed commits with git, whose hashes prove what arrived."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "https://github.com"


class Unreachable(Exception):
    """An origin cannot be had."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A repository at a commit, with the licence that it states; "" if it states none."""

    name: str  # owner/name
    commit: str
    licence: str


APACHE, MIT = "Apache-2.0", "MIT"
ORIGINS = {
    origin.name: origin
    for origin in (
        Origin("apoorvumang/prompt-lookup-decoding", "cada4fe6ec7368d41c386ec3fb94fa11268971eb", ""),
        Origin("microsoft/LMOps", "4f2a9deb5f08e459fd44c2e4792344d78ca89fc3", MIT),
        Origin("hemingkx/Spec-Bench", "fd2c1cd7d2201ef71db4c5f4e455008f017967bf", APACHE),
        Origin("yukiki-jc/Spec-Bench", "3b73a28cde526f453b6fb9fe5ca91bc9f0731853", APACHE),
        Origin("FasterDecoding/REST", "50a5fc197382ed8df5b3e946dad2f8337511b541", APACHE),
        Origin("FasterDecoding/Medusa", "e2a5d20c048a9b0a4092e6933c34313687422518", APACHE),
        Origin("RazvanDu/CopySpec", "8797be892b56d9fb45b4a0d8b67c38eb80d40499", MIT),
        Origin("Tiiiger/benchmark_llm_summarization", "4e87890ed070c7db3dd5c1125adb5bde0ccd2eb1", ""),
        Origin("chaitanyamalaviya/ExpertQA", "1aa7ba81bd4c083c12ef1aa2fee338f6cb60fa87", MIT),
        Origin(
            "Aaditya-Bhatia/CanItEdit",
            "581e96d2687c8d839b61f58c1c1833437d078d4d",
            "BSD-3-Clause, not for training models",
        ),
        Origin("tolgahanturker/gec-llm-eval", "78a0e9314a2fdacb4b860cca3e4034ca0ffb2be5", ""),
        Origin("keisks/jfleg", "ee06ff806a208aba815ac45313f4e750a48330a5", "CC BY-NC-SA 4.0"),
        Origin("grammarly/GMEG", "83be7cd0a94f6986028bd60ca7fa2c8ba036ad3b", ""),
        Origin("Linlt-leon/ETTE", "722c8acf1ccacf641d0c56a8a16e5a87d72ee8bf", ""),
        Origin("pulakdas1999/QnA_using_BERT", "48925669ea5ebb270348b817d7463b809a381bb9", "CC BY-SA 4.0 (SQuAD)"),
        Origin("nelson-liu/lost-in-the-middle", "29b8a6d042ce29abccee3db1a73171a107d7e6af", MIT),
        Origin("nltk/nltk_data", "5db857e6f7df11eabb5e5665836db9ec8df07e28", "per corpus; those used: public domain"),
        Origin("openai/whisper", "c0d2f624c09dc18e709e37c2ad90c039a4eb72a2", MIT),
        Origin(
            "meta-llama/llama-models",
            "a9c89c471f793423afd4cc3ca8671d6e56fe64cb",
            "Meta Llama 3 Community License",
        ),
        Origin("x1ngzai/Qwen-VL-Chat-Int4", "1cd721a27dd000fc4cf688c6ad58e614da1d600d", ""),
        Origin("CodingLL/RAGTruth_Eval", "5ddb09576a1dddec7f5dbda36290e5e188a5783d", ""),
    )
}


@dataclass(frozen=True, slots=True)
class Checkouts:
    """Checkouts of origins in a folder, of the files that were asked for. `host` is a URL, or a folder of clones."""

    folder: Path
    host: str = HOST

    def files(self, name: str, paths: Sequence[str]) -> Path:
        """Return the folder that holds these files of an origin, downloaded unless they are there.

        Raises Unreachable, with what git said, if they cannot be had or are not those of the commit.
        """
        origin = ORIGINS[name]
        folder = self.folder / name.replace("/", "+")
        if not (folder / ".git").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _git(folder, "init", "--quiet")
            _git(folder, "remote", "add", "origin", f"{self.host}/{name}")
            _git(folder, "config", "remote.origin.promisor", "true")
            _git(folder, "config", "remote.origin.partialclonefilter", "blob:none")
        _git(folder, "remote", "set-url", "origin", f"{self.host}/{name}")
        if not _has(folder, origin.commit):
            _git(folder, "fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", origin.commit)
        # The patterns are anchored; files of earlier calls stay in the list.
        known = folder / ".git" / "copyspec-paths"
        wanted = sorted({*(known.read_text("utf-8").splitlines() if known.exists() else ()), *paths})
        known.write_text("\n".join(wanted), encoding="utf-8")
        _git(folder, "sparse-checkout", "set", "--no-cone", *(f"/{path}" for path in wanted))
        _git(folder, "checkout", "--quiet", "--force", "--detach", origin.commit)
        if missing := [path for path in paths if not (folder / path).exists()]:
            raise Unreachable(f"{name} has no {missing[0]} at {origin.commit:.8}")
        return folder


def _has(folder: Path, commit: str) -> bool:
    command = ["git", "-C", str(folder), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, env=_environment(lazily=False)).returncode == 0


def _git(folder: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, env=_environment(), check=False
        )
    except FileNotFoundError:
        raise Unreachable("there is no git: install it") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it failed"]
        raise Unreachable(f"git {words[0]}: {next((line for line in said if line.startswith('fatal:')), said[-1])}")


def _environment(lazily: bool = True) -> dict[str, str]:
    own = {name for name in os.environ if name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}  # set within hooks
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return environment if lazily else environment | {"GIT_NO_LAZY_FETCH": "1"}
