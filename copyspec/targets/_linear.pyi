"""What `native/linear.c` gives to Python."""

from typing_extensions import Buffer

VERSION: int
MOST_ROWS: int

def linear(y: Buffer, x: Buffer, weight: Buffer, bias: Buffer | None, threads: int) -> None: ...
def is_supported(format: str) -> bool: ...
