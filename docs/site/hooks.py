"""Generates what mkdocs adds to the pages in docs/: reference, charts, examples, and the output of code blocks.

mkdocs calls the functions named `on_...`; see its documentation of hooks.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from docs import execution
from docs.site import charts, reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("mkdocs.hooks.copyspec")

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MAX_SHOWN = 30  # maximum lines shown of a block's output
NOT_RUN = "Not executed when this page was built: it needs a server, a GPU or another package."

# Files outside docs/ that become pages of the site. The README becomes its start page, in other words.
BESIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, text in made():
        files.append(File.generated(config, name, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    for section in config["nav"]:
        if "Reference" in section:
            section["Reference"] += [{part.title: part.page} for part in reference.PARTS]
            section["Reference"].append({"Examples": [{name: f"examples/{name}.md"} for name in example_names()]})
    survey = ROOT / "docs" / "survey.md"
    if survey.exists():
        config["nav"].append({"Survey": "survey.md"})
    config["nav"].append(
        {"Project": [{"Contributing": "contributing.md"}, {"Security": "security.md"}, {"Changes": "changelog.md"}]}
    )
    return config


def made() -> Iterator[tuple[str, str]]:
    """Yield names and Markdown of the pages that have no file in docs/."""
    for part in reference.PARTS:
        yield part.page, reference.markdown(part)
    yield "charts.md", charts.markdown()
    yield "guarantees.md", _guarantees()
    for name, page in BESIDE.items():
        if page != "index.md":
            yield page, _moved((ROOT / name).read_text(encoding="utf-8"))
    for path in NOTEBOOKS:
        yield f"notebooks/{path.stem}.md", notebook(path)
    for name in example_names():
        code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        yield f"examples/{name}.md", f"# {name}\n\n```py\n{code}```\n"


def notebook(path: Path) -> str:
    """Convert a notebook to Markdown, with the output of its cells."""
    pieces = []
    for cell in execution.run_notebook(path):
        pieces.append(f"```py\n{cell.source}\n```" if cell.is_code else cell.source)
        if cell.printed.strip():
            pieces.append(f'<p class="printed-title">prints</p>\n\n```text\n{_cut(cell.printed.rstrip())}\n```')
        if cell.html:
            pieces.append(cell.html.replace("\n", "&#10;"))  # on one line, since a blank line would end the HTML block
    return "\n\n".join(pieces) + "\n"


def _guarantees() -> str:
    """Extract the section on guarantees from the README, as a page of its own."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## (What is guaranteed.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert section is not None, "README.md has no section 'What is guaranteed'"
    return _moved(f"# {section[1]}").replace("](SECURITY.md)", "](security.md)")


def example_names() -> list[str]:
    """List the programs of examples/."""
    return [path.stem for path in sorted((ROOT / "examples").glob("*.py"))]


def _moved(text: str) -> str:
    """Adapt a page from outside docs/: remove that folder from its links."""
    return re.sub(r"\]\(docs/", "](", text)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the page's code, insert what it printed, and adapt links that lead out of docs/."""
    markdown = led(markdown)
    if page.file.generated_by or not page.file.src_uri.endswith(".md"):
        return markdown
    try:
        return executed(markdown, page.file.src_uri)
    except Exception as error:
        LOG.warning("%s: its code does not run: %s: %s", page.file.src_uri, type(error).__name__, error)
        return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make code and tables scrollable by keyboard, and the empty corner of a table no heading."""
    html = html.replace("<pre><span></span>", '<pre tabindex="0"><span></span>')
    html = html.replace("<table>", '<div class="scrolls" tabindex="0" role="group" aria-label="Table"><table>')
    html = html.replace("</table>", "</table></div>")
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the elements that the theme leaves unnamed for screen readers."""
    return _named(output)


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for the page of invalid addresses, which contains the theme's elements too."""
    return _named(output)


def _named(html: str) -> str:
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return html.replace('data-md-toggle="search"', 'data-md-toggle="search" aria-label="Search"')


def led(markdown: str) -> str:
    """Adapt links to files outside docs/ to the pages that these have become."""

    def target(match: re.Match[str]) -> str:
        up, name, rest = match[1], match[2], match[3] or ""
        up = up[len("../") :]
        if name == "README.md" and rest.startswith("#what-is-guaranteed"):
            return f"]({up}guarantees.md)"
        if name in BESIDE:
            return f"]({up}{BESIDE[name]}{rest})"
        if name.startswith("examples/") and name.endswith(".py"):
            return f"]({up}{name.removesuffix('.py')}.md{rest})"
        return match[0]

    return re.sub(r"\]\(((?:\.\./)+)([\w./-]+?)(#[\w-]+)?\)", target, markdown)


def executed(markdown: str, name: str) -> str:
    """Insert below each block what it printed. Raises the exceptions of the blocks."""
    printed: dict[int, str] = {block.end: out for block, out in execution.run_python(markdown, name)}
    with tempfile.TemporaryDirectory() as scratch:
        for block in execution.blocks(markdown, "sh"):
            outputs = list(execution.run_commands(block, Path(scratch)))
            shown = [f"$ {command}\n{out}" if len(outputs) > 1 else out for command, out, _ in outputs]
            printed[block.end] = "\n".join(shown).replace(scratch, "/tmp")
    pieces, at = [], 0
    for block in execution.blocks(markdown):
        pieces.append(markdown[at : block.end])
        at = block.end
        if block.language == "py":
            pieces.append(f'\n\n<p class="unrun" markdown="span">{NOT_RUN}</p>')
        elif out := printed.get(block.end, "").rstrip():
            pieces.append(f'\n\n<p class="printed-title">prints</p>\n\n```text\n{_cut(out)}\n```')
    return "".join([*pieces, markdown[at:]])


def _cut(out: str) -> str:
    lines = out.replace("```", "'''").splitlines()
    more = [f"... {len(lines) - MAX_SHOWN} more lines"] if len(lines) > MAX_SHOWN else []
    return "\n".join([*lines[:MAX_SHOWN], *more])
