"""Generates the reference of the public names from docstrings, without imports, so that optional packages may be
missing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Part:
    """One page of the reference: the public names of a package."""

    package: str
    title: str
    page: str


PARTS = (
    Part("copyspec", "copyspec", "reference/copyspec.md"),
    Part("copyspec.engine.asking.keywords", "Options", "reference/options.md"),
    Part("copyspec.pipelines", "copyspec.pipelines", "reference/pipelines.md"),
    Part("copyspec.pipelines.formats", "copyspec.pipelines.formats", "reference/formats.md"),
    Part("copyspec.pipelines.langchain", "copyspec.pipelines.langchain", "reference/langchain.md"),
    Part("copyspec.retrievers", "copyspec.retrievers", "reference/retrievers.md"),
    Part("copyspec.retrievers.langchain", "copyspec.retrievers.langchain", "reference/retrievers_langchain.md"),
    Part("copyspec.integrations.vllm", "copyspec.integrations.vllm", "reference/vllm.md"),
    Part("copyspec.integrations.ray", "copyspec.integrations.ray", "reference/ray.md"),
    Part("copyspec.integrations.transformers", "copyspec.integrations.transformers", "reference/transformers.md"),
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Public:
    """A public name and its definition."""

    name: str
    file: Path
    nodes: tuple[ast.stmt, ...]  # several for overloads; the implementation is the last one

    @property
    def node(self) -> ast.stmt:
        return self.nodes[-1]


def public_names(part: Part) -> list[str]:
    """Return the public names of the package: `__all__`, else what it imports as such (`A as A`), else all names that
    it defines without a leading underscore."""
    tree = _parsed(_file(part.package))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    imported = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    if exported := sorted(alias.asname for alias in imported if alias.asname):
        return exported
    return [node.name for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")]


def definition(package: str, name: str) -> Public:
    """Find the definition of a public name through the imports of its package. Raises LookupError if there is none."""
    file = _file(package)
    for _ in range(6):  # follows packages that re-export a name
        tree = _parsed(file)
        nodes = tuple(node for node in tree.body if _defines(node, name))
        if nodes:
            return Public(name, file, nodes)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                original = next((alias.name for alias in node.names if name in (alias.asname, alias.name)), None)
                if original is not None:
                    file, name = _file(_absolute(file, node)), original
                    break
        else:
            break
    raise LookupError(f"{package}.{name} is defined nowhere")


def markdown(part: Part) -> str:
    """Format the page of one package."""
    tree = _parsed(_file(part.package))
    pieces = [f"# {part.title}\n", _prose(ast.get_docstring(tree) or "")]
    for name in public_names(part):
        pieces.append(f"\n## {name}\n")
        pieces += _entry(part, definition(part.package, name))
    return "\n".join(pieces) + "\n"


def _entry(part: Part, public: Public) -> Iterator[str]:
    node = public.node
    if isinstance(node, ast.ClassDef):
        yield from _class(part, public, node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"```py\n{_signature(node)}\n```\n"
        yield _prose(ast.get_docstring(node) or "")
    else:
        yield f"```py\n{ast.unparse(node)[:400]}\n```\n"
        yield _prose(_below(_parsed(public.file).body, node))


def _class(part: Part, public: Public, node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"```py\nclass {node.name}{f'({bases})' if bases else ''}\n```\n"
    yield _prose(ast.get_docstring(node) or "")
    rows = list(_fields(public, node))
    if rows:
        yield "\n| field | type | |\n|---|---|---|"
        yield from (f"| `{name}` | `{_cell(kind)}` | {_cell(_linked(doc))} |" for name, kind, doc in rows)
        yield ""
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
        doc = ast.get_docstring(member) or ""
        if any(name.endswith("overload") or name.endswith(".setter") for name in decorators):
            continue
        if member.name == "__init__":
            yield f"```py\n{_signature(member, node.name)}\n```\n"
            yield _prose(doc)
        elif not member.name.startswith("_"):
            yield f"\n### {node.name}.{member.name}\n"
            yield f"```py\n{member.name if 'property' in decorators else _signature(member)}\n```\n"
            yield _prose(doc)


def _fields(public: Public, node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    comments = _comments(public.file)
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and member.target.id[0] != "_":
            default = f" = {ast.unparse(member.value)}" if member.value is not None else ""
            doc = (
                _below(node.body, member)
                or comments.get(member.end_lineno or 0, "")
                or comments.get(member.lineno - 1, "")
            )
            yield member.target.id, ast.unparse(member.annotation) + default, doc


def _below(body: list[ast.stmt], node: ast.stmt) -> str:
    """Return the string after an assignment, which documents it."""
    at = body.index(node) + 1
    if at < len(body):
        following = body[at]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return " ".join(str(following.value.value).split())
    return ""


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    arguments = ast.unparse(node.args)
    for receiver in ("self, ", "cls, ", "self", "cls"):
        if arguments.startswith(receiver):
            arguments = arguments.removeprefix(receiver)
            break
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and not name else ""
    head = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{head}{name or node.name}({arguments}){returns}"
    if len(line) <= 90:
        return line
    parts = _split(arguments)
    return f"{head}{name or node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _split(arguments: str) -> list[str]:
    """Split arguments at commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


_PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): (.*)$")


def _prose(doc: str) -> str:
    """Convert a docstring to Markdown: paragraphs, a list of parameters, and examples as code."""
    out: list[str] = []
    lines = doc.splitlines()
    fenced = False
    for line in lines:
        is_code = line.lstrip().startswith((">>>", "...")) or (fenced and line.startswith("    "))
        if is_code != fenced:
            out += ["\n```py" if is_code else "```\n"]
            fenced = is_code
        if is_code:
            out.append(line.strip())
        elif match := _PARAMETER.match(line):
            if out and out[-1] and not out[-1].startswith("- "):
                out.append("")
            out.append(f"- **`{match[1]}`**: {_linked(match[2])}")
        else:
            out.append(_linked(line) if not line.startswith("    ") else "  " + _linked(line.strip()))
    if fenced:
        out.append("```")
    return "\n".join(out).strip() + "\n"


def _linked(text: str) -> str:
    """Remove links written for docs/api.md, and escape what looks like HTML."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"<(?=[A-Za-z/!])", "&lt;", text) if "`" not in text else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, Definition):
        return node.name == name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target) == name
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets)


def _absolute(file: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folder = file.parent
    for _ in range(node.level - 1):
        folder = folder.parent
    parts = folder.relative_to(ROOT).parts
    parts = parts if parts[0] == "copyspec" else ("copyspec", *parts)
    return ".".join([*parts, *filter(None, [node.module])])


def _file(module: str) -> Path:
    """Return the file of a module of the package; retrievers/ and pipelines/ are beside copyspec/."""
    path = Path(*module.split("."))
    outside = Path(*module.split(".")[1:])
    for place in (path, outside):
        for file in (ROOT / place / "__init__.py", (ROOT / place).with_suffix(".py")):
            if file.exists() and place.parts:
                return file
    raise LookupError(f"no module {module} in this package")


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _comments(file: Path) -> dict[int, str]:
    """Return the trailing comment of each line that has one."""
    source = io.StringIO(file.read_text(encoding="utf-8"))
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(source.readline)
        if token.type == tokenize.COMMENT
    }
