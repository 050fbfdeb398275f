"""Attributes that `fit` sets have no declared type: griffe would show that of the attribute named before."""

import re

import griffe


class Undeclared(griffe.Extension):
    """Declare, without a type, each attribute that a docstring of a class names and no member is."""

    def on_package(self, *, pkg, **_):
        found = [pkg]
        for one in found:  # it grows
            members = [member for member in one.members.values() if not member.is_alias]
            found += [member for member in members if member.is_module or member.is_class]
            if one.is_class and one.docstring is not None:
                part = one.docstring.value.partition("\nAttributes:\n")[2].split("\n\n")[0]
                for name in re.findall(r"^    (\w+): ", part, re.MULTILINE):
                    if name not in one.all_members:
                        one[name] = griffe.Attribute(name)
