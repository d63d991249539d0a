"""No message contains the value of a Secret: whole, cut, as a line or as a string inside JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import events
from mptraining_api.launch import SECRET_PATHS, SECRET_VARIABLES, WorkerIdentity
from mptraining_trainer.report.secrets import SHORTEST, SecretValues
from mptraining_trainer.report.telemetry import Telemetry

TOKEN = "wandb-0123456789abcdef"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"
ACCOUNT = {
    "private_key_id": "f00dfeedf00dfeedf00d",
    "private_key": KEY,
    "client_email": "trainer@team.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
}


@pytest.mark.parametrize(
    ("named", "environment", "text", "expected"),
    [
        ("TOKEN", {"TOKEN": TOKEN}, f"401 for {TOKEN!r}.", "401 for '(the value of TOKEN)'."),
        ("TOKEN", {"TOKEN": TOKEN}, f"401 for {TOKEN[:18]}… retry", "401 for (the value of TOKEN)… retry"),
        ("TOKEN", {"TOKEN": TOKEN}, f"{TOKEN},{TOKEN}", "(the value of TOKEN),(the value of TOKEN)"),
        ("TOKEN", {"TOKEN": f"{TOKEN}\n"}, f"401 for {TOKEN}", "401 for (the value of TOKEN)"),
        ("TOKEN,OTHER", {"TOKEN": TOKEN, "OTHER": f"{TOKEN}-longer"}, f"{TOKEN}-longer", "(the value of OTHER)"),
        ("*", {"FROM_A_SECRET": TOKEN, "PATH": "/usr/local/bin"}, f"/usr/local/bin {TOKEN}", "/usr/local/bin (the"),
        ("AWS_*", {"AWS_KEY": TOKEN, "HOST": "files.example.org"}, f"files.example.org {TOKEN}", "files.example.org ("),
        ("TOKEN", {"TOKEN": "admin"}, "the admin says no", "the admin says no"),
        ("TOKEN", {}, "nothing is set", "nothing is set"),
        ("", {"TOKEN": "not-from-a-secret"}, "not-from-a-secret", "not-from-a-secret"),
    ],
)
def test_a_variable_is_hidden(named: str, environment: dict[str, str], text: str, expected: str) -> None:
    hidden = SecretValues.from_environment({**environment, SECRET_VARIABLES: named}).redact(text)
    assert hidden.startswith(expected)
    assert TOKEN not in hidden or not named


def test_a_mounted_key_is_hidden_and_the_account_is_not(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(json.dumps(ACCOUNT))
    secrets = SecretValues.from_environment({SECRET_PATHS: f"{tmp_path}:/not/there"})
    line = KEY.splitlines()[1]
    said = secrets.redact(
        f"{ACCOUNT['client_email']} may not read gs://bucket; id {ACCOUNT['private_key_id']}, key {line}"
    )
    assert said.startswith(f"{ACCOUNT['client_email']} may not read gs://bucket; id (the value of {tmp_path}/key.json)")
    assert line not in said
    assert secrets.redact(f"POST {ACCOUNT['token_uri']} failed") == f"POST {ACCOUNT['token_uri']} failed"
    # A value that is renewed in the pod is known by its newest one.
    (tmp_path / "key.json").write_text(TOKEN)
    assert TOKEN not in secrets.redact(f"refused: {TOKEN}")
    # A file alone may be mounted.
    (tmp_path / "key.json").write_bytes(b"correct horse\xff battery\n")
    file = SecretValues.from_environment({SECRET_PATHS: f"{tmp_path}/key.json"})
    assert "correct horse" not in file.redact("'correct horse� battery'")


@given(before=st.text(max_size=30), value=st.text(min_size=SHORTEST, max_size=60), after=st.text(max_size=30))
def test_no_value_survives_at_any_place(before: str, value: str, after: str) -> None:
    stripped = value.strip()
    if len(stripped) < SHORTEST or stripped in "(the value of V)":
        return
    assert stripped not in SecretValues({"V": value}).redact(f"{before}{stripped}{after}")


def test_events_and_the_termination_log_have_no_secret_in_them(tmp_path: Path) -> None:
    stream, log = io.StringIO(), tmp_path / "termination-log"
    voice = Telemetry(
        WorkerIdentity(index=0, hosts=("a:1",), attempt=1, incarnation="pod"),
        str(tmp_path / "run"),
        termination_log=str(log),
        secrets=SecretValues({"TOKEN": TOKEN}),
        stream=stream,
    )
    heard: list[events.Event] = []
    voice.listeners.append(heard.append)
    voice.notice("Slow", f"asking with {TOKEN}", level="Warning")
    voice.emit(events.Recovered, from_step=2, to_step=1, precision="float32", message=f"no {TOKEN}")
    voice.emit(events.Finished, reason="ProgramFailed", exit_code=1, message=f"401 for {TOKEN}")
    voice.close()
    kept = "".join(path.read_text() for path in (tmp_path / "run").rglob("*.jsonl"))
    for text in (stream.getvalue(), log.read_text(), kept, repr(heard), repr(voice.warnings)):
        assert "(the value of TOKEN)" in text
        assert TOKEN[:16] not in text
