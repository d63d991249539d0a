"""YAML text of a document for a person."""

from __future__ import annotations

import re

# What YAML 1.2 reads as a number, and YAML 1.1 as text: 1e-3.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def to_yaml(document: object) -> str:
    """Return YAML that readers of 1.1 (kubectl) and of 1.2 (`mptj`) read alike: text that either takes for something
    else is quoted.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "'" if _NUMBER.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True)
