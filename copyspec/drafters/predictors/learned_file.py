"""What is learned of draft heads, kept in the user's cache for the next process. No output depends on it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from hashlib import sha256
from pathlib import Path

from copyspec.common.filesystem import open_regular
from copyspec.drafters.predictors.base import Learned
from copyspec.models.model_cache import cache_folder

logger = logging.getLogger(__name__)

FORMAT = "copyspec learned 1"
MOST_BYTES = 4096
FIRST_SAVE, LONGEST = 32, 1024
"""Reads after which a file is written: the first time, and between two of them; in between the number doubles."""


class LearnedFile:
    """The file of one model and its heads. Threads and processes may write at once: the last one wins."""

    def __init__(self, *names: object) -> None:
        """`names`: what the heads and their model are told from others by."""
        self._path: Path | None = None
        with contextlib.suppress(OSError):  # there is no home
            self._path = cache_folder() / "learned" / f"{sha256(repr(names).encode()).hexdigest()[:32]}.json"
        self._reads, self._next = 0, FIRST_SAVE

    def load(self, learned: Learned) -> None:
        """Take over what was learned before. A file that `save` did not write is ignored, and told once."""
        if self._path is None:
            return
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"it has over {MOST_BYTES:,} bytes")
            state = json.loads(content)
            if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            learned.restore(state)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("what was learned of draft heads is ignored, %s: %.200s", self._path, error)

    def has_read(self, learned: Learned) -> None:
        """Note a read of the heads; from time to time, write what is learned."""
        self._reads += 1
        if self._reads >= self._next:
            self._next = self._reads + min(self._reads, LONGEST)
            self.save(learned)

    def save(self, learned: Learned) -> None:
        """Write what is learned; where that is not possible, do not try again."""
        if (path := self._path) is None:
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"format": FORMAT} | learned.state()), encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            self._path = None
            logger.info("what is learned of draft heads cannot be kept: %s", error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
