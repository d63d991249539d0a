"""The comparison and the commands of the storage migration, without servers."""

from __future__ import annotations

import sys
from collections import Counter

from tests.soak.storage_migration import NEXT_OPERATOR, Seen, Step, documented_commands, table


def test_the_commands_are_those_of_the_document() -> None:
    commands = documented_commands()
    assert set(commands) == {"store", "forget", "owners"}
    assert "kubectl patch -f - --type=merge -p '{}'" in commands["store"]


def test_what_differs_is_named() -> None:
    before = Seen({"a": {"spec": 1}, "b": {"spec": 1}}, {"jobs a-1": ("uid", "7")})
    assert before.changed_since(before) == ()
    after = Seen({"a": {"spec": 2}, "c": {"spec": 1}}, {"jobs a-1": ("uid", "8")})
    assert after.changed_since(before) == ("a", "b", "c", "jobs a-1")
    assert after.changed_since(before, children=False) == ("a", "b", "c")


def test_the_table_counts_changes_and_writes() -> None:
    steps = [Step("served", 1.25, Counter(), ()), Step("stored", 20.0, Counter({"patch jobs": 2}), ("a",))]
    lines = table(steps, jobs=10, copied=0, wrong=["stored"]).splitlines()
    assert "| served | 1.2 | 0 | 0 |" in lines
    assert "| stored | 20.0 | 1 | 2 |" in lines
    assert lines[-1] == "Complaints: 1."


def test_the_next_operator_is_this_one_with_other_constants() -> None:
    program = NEXT_OPERATOR.rpartition("from mptraining_operator")[0]
    space: dict[str, object] = {}
    name = "mptraining_api.validation.api_versions"
    own = sys.modules.get(name)
    try:
        exec(program, space)
        module = sys.modules[name]
        assert (module.API_VERSION, module.SERVED) == ("mptraining.dev/v1beta1", ("v1beta1", "v1alpha1"))
    finally:
        if own is not None:
            sys.modules[name] = own
