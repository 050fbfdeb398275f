"""Every public signature and field says a type: neither nothing nor `Any`."""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxsvm.solvers.contract import Solver

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
NAMES = sorted({name for page in PAGES.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)})
LOOSE = {
    "jaxsvm.decision_function(arguments)": "those of its overloads",
    "jaxsvm.predict(arguments)": "those of its overloads",
    "jaxsvm.relational.fit_path(options)": "those of `fit`",
}
"""What says `Any`, and what it is."""


def types_of(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters, results and fields of a public name, members included, and what they say of their type."""
    found = inspect.unwrap(getattr(found, "fget", getattr(found, "__func__", found)))
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        if not name.endswith(".__init__"):
            yield f"{name}()", signature.return_annotation
        for parameter in signature.parameters.values():
            if parameter.name not in ("self", "cls"):
                yield f"{name}({parameter.name})", parameter.annotation
    elif inspect.ismodule(found):
        for key in getattr(found, "__all__", vars(found)):
            member = getattr(found, key)
            if not key.startswith("_") and getattr(member, "__module__", "").startswith(found.__name__):
                yield from types_of(f"{name}.{key}", member)
    elif inspect.isclass(found) and not issubclass(found, Exception):
        fields, members = {}, {}
        for base in reversed(found.__mro__):
            # What a solver takes over from the contract has a state, which may be anything.
            if base.__module__.startswith("jaxsvm") and (base is found or not issubclass(base, Solver)):
                members |= vars(base)
                fields = {key: said for key, said in fields.items() if key not in vars(base)}
                fields |= inspect.get_annotations(base)
        yield from ((f"{name}.{key}", said) for key, said in fields.items() if not key.startswith("_"))
        for key in members.keys() - fields.keys():
            made = getattr(found, "_is_protocol", False) and key == "__init__"
            if not key.startswith("_") or key == "__init__" and not made:
                yield from types_of(f"{name}.{key}", members[key])


@pytest.mark.parametrize("name", NAMES)
def test_it_says_its_types(name):
    said = dict(types_of(name, pkgutil.resolve_name(name)))
    silent = [key for key, kind in said.items() if kind is inspect.Signature.empty]
    vague = [key for key, kind in said.items() if str(kind).removeprefix("typing.").removesuffix(" | None") == "Any"]
    assert {*silent, *vague} <= set(LOOSE)
