"""Reads HCL with line numbers. A runbook is data: expressions, functions and `${...}` are refused with their
lines.

`queue "orders" { ... }` is the table `queue.orders`; the block `retry { ... }` and `retry = { ... }` are both
the table `retry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.runbook.source import Node, Problem, Problems, shown, subpath

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_HEREDOC = re.compile(r"<<(-?)([^\r\n]+)\r?\n(.*?)[ \t]*\2\r?\n\Z", re.DOTALL)
_TEMPLATE = re.compile(r"\$(\$?)\{|%(%?)\{")
_NOT_DATA = "expected a plain value; a runbook is data, without variables, functions or ${...} (write $${ for a literal ${)"


def read_hcl(text: str, file: str, problems: Problems) -> Node | None:
    try:
        from hcl2.api import parses_to_tree
        from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
    except ImportError:
        problems.errors.append(
            Problem(
                file,
                None,
                "",
                "expected the package python-hcl2, which reads HCL; install it with: pip install 'fairlead[server]'",
            )
        )
        return None
    try:
        tree = parses_to_tree(text)
    except UnexpectedInput as error:
        got = ""
        if isinstance(error, UnexpectedToken):
            got = "the end of the file" if error.token.type == "$END" else shown(str(error.token))
        elif isinstance(error, UnexpectedCharacters):
            at = error.pos_in_stream
            got = shown("" if at is None else text[at : at + 1])
        problems.errors.append(_syntax_error(file, text, error.line, error.column, got))
        return None
    return Node(_HclReader(file, problems).body(tree.children[0], ""), file, 1)


def _syntax_error(file: str, text: str, line: Any, column: Any, got: str) -> Problem:
    is_known = isinstance(line, int) and line > 0
    what = f"expected HCL, got {got}, column {column}" if got else "expected HCL"
    return Problem(file, line if is_known else text.count("\n") + 1, "", what)


class _Refused(Exception):
    def __init__(self, line: int, what: str) -> None:
        self.line = line
        self.what = what


class _HclReader:
    """Reads the syntax tree, in which every rule has its line."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = problems

    def body(self, tree: Any, path: str) -> dict[str, Node]:
        table: dict[str, Node] = {}
        for part in tree.children:
            if part.data == "attribute":
                name = _word(part.children[0])
                self._put(
                    table, name, self._node(part.children[-1], subpath(path, name), part.meta.line), path
                )
            elif part.data == "block":
                self._block(part, table, path)
        return table

    def _block(self, block: Any, table: dict[str, Node], path: str) -> None:
        """Add a block to a table. All labels but the last name tables, to which further blocks may add."""
        names = [
            self._label(child)
            for child in block.children
            if _is_rule(child, "identifier", "keyword", "literal_value", "string")
        ]
        for name in names[:-1]:
            path = subpath(path, name)
            node = table.setdefault(name, Node({}, self.file, block.meta.line))
            if not isinstance(node.value, dict):
                self.problems.error(
                    Node(None, self.file, block.meta.line), path, f"defined twice, first in line {node.line}"
                )
                return
            table = node.value
        inner = next(child for child in block.children if _is_rule(child, "body"))
        self._put(
            table,
            names[-1],
            Node(self.body(inner, subpath(path, names[-1])), self.file, block.meta.line),
            path,
        )

    def _label(self, tree: Any) -> str:
        try:
            return _text(tree) if tree.data == "string" else _word(tree)
        except _Refused as refused:
            self.problems.error(Node(None, self.file, refused.line), "", refused.what)
            return ""

    def _put(self, table: dict[str, Node], name: str, node: Node, path: str) -> None:
        if name in table:
            self.problems.error(node, subpath(path, name), f"defined twice, first in line {table[name].line}")
        table.setdefault(name, node)

    def _node(self, tree: Any, path: str, line: int) -> Node:
        try:
            return Node(self._value(tree, path), self.file, line)
        except _Refused as refused:
            self.problems.error(Node(None, self.file, refused.line), path, refused.what)
            return Node(_REFUSED, self.file, line)

    def _value(self, tree: Any, path: str) -> Any:
        """The value of an expression. Its complexity is that of one table of cases."""
        if tree.data == "expr_term" and len(tree.children) == 1:
            tree = tree.children[0]
        match tree.data:
            case "string":
                return _text(tree)
            case "int_lit":
                return _whole(tree)
            case "float_lit":
                return float(tree.children[0])
            case "literal_value":
                return {"true": True, "false": False, "null": None}[str(tree.children[0])]
            case "unary_op" if str(tree.children[0]) == "-":
                number = self._value(tree.children[1], path)
                if type(number) in (int, float):
                    return -number
            case "heredoc_template" | "heredoc_template_trim":
                return _heredoc(tree)
            case "tuple":
                rules = (
                    child
                    for child in tree.children
                    if _is_rule(child) and child.data != "new_line_or_comment"
                )
                return [
                    self._node(item, subpath(path, index), item.meta.line) for index, item in enumerate(rules)
                ]
            case "object":
                return self._object(tree, path)
        raise _Refused(tree.meta.line, _NOT_DATA)

    def _object(self, tree: Any, path: str) -> dict[str, Node]:
        table: dict[str, Node] = {}
        for element in tree.children:
            if _is_rule(element, "object_elem"):
                name = _key(element.children[0].children[0])
                self._put(
                    table,
                    name,
                    self._node(element.children[-1], subpath(path, name), element.meta.line),
                    path,
                )
        return table


#: Stands for a value that was refused, so that the checker does not report the value again.
_REFUSED: Any = type("Refused", (), {"__repr__": lambda self: "refused"})()


def is_refused(value: object) -> bool:
    return value is _REFUSED


def _is_rule(tree: Any, *names: str) -> bool:
    return hasattr(tree, "data") and (not names or tree.data in names)


def _word(tree: Any) -> str:
    return str(tree.children[0])


def _key(tree: Any) -> str:
    if tree.data == "expr_term" and len(tree.children) == 1:
        tree = tree.children[0]
    if tree.data == "string":
        return _text(tree)
    if tree.data in ("identifier", "keyword", "literal_value", "int_lit"):
        return _word(tree)
    raise _Refused(tree.meta.line, _NOT_DATA)


def _whole(tree: Any) -> int:
    try:
        return int(tree.children[0])
    except ValueError as error:
        raise _Refused(tree.meta.line, str(error)) from None


def _text(tree: Any) -> str:
    return "".join(_string_parts(tree))


def _string_parts(tree: Any) -> Iterator[str]:
    for part in tree.children[1:-1]:
        token = part.children[0]
        if _is_rule(token):
            raise _Refused(part.meta.line, _NOT_DATA)
        raw = str(token)
        yield _unescaped(raw[1:] if token.type.startswith("ESCAPED_") else raw, token.line)


def _unescaped(raw: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1] or found[2]
        if code and int(code, 16) <= 0x10FFFF:
            return chr(int(code, 16))
        if not code and found[3] in _SIMPLE:
            return _SIMPLE[found[3]]
        raise _Refused(
            line,
            f'expected an escape of HCL (\\n \\r \\t \\" \\\\ \\uNNNN \\UNNNNNNNN), got {found[0]}',
        )

    return _ESCAPE.sub(one, raw)


def _heredoc(tree: Any) -> str:
    """The lines of a heredoc with the last line break, as HCL defines; `<<-` removes the common indentation."""
    found = _HEREDOC.match(str(tree.children[0]))
    assert found is not None
    body = found[3]
    if found[1]:
        lines = body.split("\n")
        indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
        body = "\n".join(line[indent:] for line in lines)

    def one(template: re.Match[str]) -> str:
        if not (template[1] or template[2]):
            raise _Refused(tree.meta.line, _NOT_DATA)
        return template[0][1:]

    return _TEMPLATE.sub(one, body)
