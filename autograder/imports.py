"""Does an answer import more than torch, einops and the standard library? It may not.

The course's own packages hold the answers; other packages are not there when it is graded.
`forbidden_imports` reads source text and runs nothing. `check` applies it to the cells behind a
function, `grade` to the answer and helper cells of a submission.
"""

import ast
import re
import sys

ALLOWED = frozenset({"torch", "einops"}) | sys.stdlib_module_names
COURSE = ("policy_gradients", "toy_models", "autograder", "llm_trainer", "lectures", "solutions")
# Calls and lookups that turn a string into a module or into code.
LOADERS = {
    "__import__", "import_module", "find_spec", "reload", "run_module", "run_path",
    "spec_from_file_location", "find_module", "load_module", "exec", "eval", "compile",
    "run_line_magic", "run_cell_magic", "run_cell",
}  # fmt: skip
# Of these, the ones that only ever take code or the name of a module.
INDIRECT = LOADERS - {"compile", "eval", "reload", "find_spec"}
NAMED = re.compile(rf"(?<![\w.])({'|'.join(COURSE)})(?!\w)")


def forbidden_imports(source: str) -> list[str]:
    """The packages that this source imports and may not, by name, each once; [] for none.

    Finds import statements anywhere (inside functions too); ``from autograder import check`` is no
    way to an answer, ``check.__globals__`` is. For the course's own packages also ``__import__``
    and importlib calls, text handed to exec and eval, and ``sys.modules[...]``; where such a call
    is given a variable, any text of the source counts. For numpy also ``.numpy()`` inside a
    function: where that is graded, torch has to do without.
    Lines with % or ! are skipped; text that does not parse is searched line by line.
    """
    try:
        tree = ast.parse(re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.M))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = re.findall(r"^\s*(?:from|import)\s+(.*)$", source, flags=re.M)
        return list(dict.fromkeys(name for line in lines for name in NAMED.findall(line)))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            ours = node.module == "autograder" and [a.name for a in node.names] == ["check"]
            names = [] if node.level or ours else [node.module or ""]
        elif isinstance(node, ast.Call) and _callee(node.func) in LOADERS:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            names = [name for a in arguments for name in NAMED.findall(_text(a))]
            variable = any(isinstance(n, ast.Name) for a in arguments for n in ast.walk(a))
            if variable and _callee(node.func) in INDIRECT:
                names += _named_outside_docstrings(tree)
        elif isinstance(node, ast.Subscript) and _callee(node.value) == "modules":
            names = NAMED.findall(_text(node.slice))
        elif isinstance(node, ast.Attribute) and _callee(node.value) == "check":
            names = ["autograder"] if node.attr.startswith("__") else []
        elif isinstance(node, ast.FunctionDef):
            names = ["numpy"] if _attributes(node) & {"numpy", "from_numpy"} else []
        else:
            names = []
        roots = [name.partition(".")[0] for name in names]
        found += [root for root in roots if root not in ALLOWED]
    return list(dict.fromkeys(found))


def _callee(function: ast.expr) -> str:
    """The last name of ``f`` or ``a.b.f``."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _attributes(node: ast.AST) -> set[str]:
    """All names behind a dot."""
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _text(node: ast.expr) -> str:
    """All the literal text of an expression, concatenated: "policy_" + "gradients" is seen."""
    return "".join(
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def _named_outside_docstrings(tree: ast.AST) -> list[str]:
    """The course's packages that any text in the source names, documentation left out."""
    prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [name for n in texts if id(n) not in prose for name in NAMED.findall(n.value)]
