"""The house: which rooms there are, and that no import runs up."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent / "jaxsvm"
ROOMS = (
    *("errors", "runtime", "numerics", "points", "kernels", "gram", "results", "problems", "derivatives", "screening"),
    *(
        "solvers",
        "loop",
        "path",
        "datasets",
        "models",
        "model_selection",
        "designs",
        "coresets",
        "estimators",
        "relational",
    ),
    *("plots", "cli"),
)
"""From the ground up: a room imports from itself and from those before it."""
VERBS = """
Accept Add Advise Append Apply Approximate Assign Attach Average Begin Bind Bisect Bound Build Call Cast Certify
Change Check Choose Clear Clip Code Compute Continue Contract Convert Correct Count Cover Cross-validate Cut Declare
Decode Delete Describe Differentiate Divide Do Double Draw Drop Embed Encode Estimate Evaluate Extrapolate Factor Fill
Find Fit Form Format Gather Give Go Group Halve Handle Import Insert Iterate Join Keep Label Lay Learn Leave Lengthen
List Locate Lower Make Map Mark Maximise Measure Minimise Move Multiply Name Note Open Pad Parse Pick Plan Polish
Predict Prepare Print Put Quote Raise Read Rebuild Recombine Recompute Reduce Refuse Register Reinterpret Remove
Repeat Replace Restart Restore Return Reuse Round Run Say Scale Score Screen Search Select Set Show Simplify Solve
Split Square Stack Start Step Store Subtract Suggest Sum Summarise Take Tell Trace Train Transpose Turn Update Visit
Warn Widen Wrap Write Yield
"""
"""In the imperative: the first words of the docstrings of functions."""
MOST_FILES = 12
"""Files of a room, `__init__.py` and the folders in it apart."""
LINES = {
    "cli": 1_166,
    "coresets": 1_977,
    "datasets": 1_504,
    "derivatives": 447,
    "designs": 2_009,
    "estimators": 2_405,
    "face": 308,
    "gram": 1_180,
    "kernels": 925,
    "loop": 2_460,
    "model_selection": 946,
    "models": 1_366,
    "numerics": 1_474,
    "path": 2_074,
    "plots": 390,
    "points": 365,
    "problems": 3_110,
    "relational": 3_447,
    "results": 583,
    "runtime": 1_381,
    "screening": 665,
    "solvers": 5_282,
}
"""Lines of each room; `face` is what stands outside them. A number may only fall: what lowers it lowers it here."""
OWN_IMPORTS, FILES = 1206, 175
"""Lines that import from this library, and files."""


def modules() -> list[Path]:
    return sorted(path for path in HOUSE.rglob("*.py") if path.parent != HOUSE or path.name == "errors.py")


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, by their names below `jaxsvm`, for types too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxsvm"):
            room = (node.module or "").removeprefix("jaxsvm").removeprefix(".")
            for alias in node.names:
                inner = f"{room}.{alias.name}".removeprefix(".")
                if (HOUSE / inner.replace(".", "/")).with_suffix(".py").exists() or (room == "" and inner in ROOMS):
                    yield inner
                elif room:
                    yield room


def test_only_the_front_door_and_errors_stand_outside_the_rooms():
    assert sorted(path.name for path in HOUSE.glob("*.py")) == ["__init__.py", "__main__.py", "errors.py"]
    assert {path.parent.name for path in HOUSE.glob("*/__init__.py")} == set(ROOMS) - {"errors"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_import_runs_up(path):
    place = ROOMS.index(path.relative_to(HOUSE).parts[0].removesuffix(".py"))
    assert [name for name in imported(path) if ROOMS.index(name.split(".")[0]) > place] == []


def test_the_house_does_not_grow():
    """A feature is paid for by what it replaces; a row that stands 40 lines too high is lowered."""
    lines = {path: path.read_text().splitlines() for path in HOUSE.rglob("*.py")}
    rooms = dict.fromkeys(LINES, 0)
    for path, text in lines.items():
        rooms["face" if path.parent == HOUSE else path.relative_to(HOUSE).parts[0]] += len(text)
    above = {room: count - LINES[room] for room, count in rooms.items() if not LINES[room] - 40 <= count <= LINES[room]}
    assert above == {}
    own = sum(line.lstrip().startswith(("from jaxsvm", "import jaxsvm")) for text in lines.values() for line in text)
    assert (own <= OWN_IMPORTS, len(lines) <= FILES) == (True, True), (own, len(lines))


def test_rooms_are_small():
    rooms = {path.parent for path in modules()}
    crowded = {
        room.name: len(list(room.glob("*.py"))) for room in rooms if len(list(room.glob("*.py"))) > MOST_FILES + 1
    }
    assert crowded == {}


def test_modules_import_each_other_one_way():
    """No circle of files: each can be put after all that it imports."""
    names = {
        ".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): path for path in modules()
    }
    left = {
        name: {other for other in imported(path) if other in names and other != name} for name, path in names.items()
    }
    while left:
        free = {name for name, needs in left.items() if not needs & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_files_and_functions_fit_their_readers(path):
    """No file above 500 lines, no function above 50 lines of code, no docstring of one that begins without a verb."""
    lines = path.read_text().splitlines()
    assert len(lines) <= 500
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef):
            word = (ast.get_docstring(node) or "Return").split()[0].rstrip(".,:;")
            assert word in VERBS.split(), f"{path}:{node.lineno}: begin with a verb, or add it to VERBS"
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            code = lines[body[0].lineno - 1 : node.end_lineno]
            assert sum(bool(line.strip()) and not line.strip().startswith("#") for line in code) <= 50, node.name


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_public_methods_say_what_they_do(path):
    """In a docstring of their own, or in that of the method that they override."""
    module = importlib.import_module(".".join(path.relative_to(HOUSE.parent).with_suffix("").parts))
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and not kind.__name__.startswith("_"):
            members = {name: getattr(one, "fget", one) for name, one in vars(kind).items() if name[0] != "_"}
            methods = [name for name, one in members.items() if getattr(one, "__name__", "") == name]
            silent = [name for name in methods if not inspect.getdoc(getattr(kind, name))]
            assert silent == [], kind


WRITING = ("write_text", "write_bytes", "savez", "savez_compressed", "savefig", "dump", "write_table")
NAMING = ("replace", "rename", "move", "copyfile", "mkstemp", "NamedTemporaryFile", "savetxt", "to_csv", "to_parquet")
TARGETS = {"content", "file", "sys.stdout"}
"""Bytes in memory, the file that `write_whole` opened, and standard output."""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_files_are_written_in_one_place(path):
    """By `write_whole` of `runtime/files.py`, beside the older file, which they then replace."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for node in calls if path != HOUSE / "runtime" / "files.py" else ():
        owner, _, name = ast.unparse(node.func).rpartition(".")
        given = [ast.unparse(part) for part in (*node.args, *(keyword.value for keyword in node.keywords))]
        if name == "open" and owner != "os":
            assert not [mode for mode in given if re.fullmatch("'[rbt]*[wax+][rwaxbt+]*'", mode)], given
        assert name not in WRITING or TARGETS & {*given}, (name, given)
        assert name not in NAMING or owner not in ("os", "shutil", "tempfile", "np", "numpy"), name


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_class_takes_a_function_of_another_module_as_a_method(path):
    for node in ast.walk(ast.parse(path.read_text())):
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            foreign = isinstance(line, ast.Assign) and isinstance(line.value, ast.Attribute)
            assert not (foreign and ast.unparse(line.value.value).islower()), f"{path}:{line.lineno}"


def test_one_function_concludes_that_a_fit_has_converged():
    """Elsewhere CONVERGED is only compared with: each second place that concluded it has lied."""
    places = []
    for path in HOUSE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        compared = {
            id(inner) for node in ast.walk(tree) if isinstance(node, ast.Compare) for inner in ast.walk(node)
        } | {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
        places += [
            f"{path.relative_to(HOUSE)}:{node.lineno}"
            for node in ast.walk(tree)
            if (getattr(node, "attr", None) == "CONVERGED" or getattr(node, "value", None) == "CONVERGED")
            and id(node) not in compared
        ]
    assert [place.split(":")[0] for place in places] == ["results/judge.py"], places
