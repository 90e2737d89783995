"""A folder for `model.generate(..., custom_generate="this folder", trust_remote_code=True)`, or for the Hub."""

from copyspec.integrations.transformers import generate as generate_with_copyspec


def generate(model, **arguments):  # type: ignore[no-untyped-def]
    """Decode as `model.generate` does; also accepts copyspec's `references`, `edit_source`, ..."""
    return generate_with_copyspec(model, **arguments)
