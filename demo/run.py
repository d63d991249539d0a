"""`make demo`: scikit-learn's digits as TFRecords, trained in float32 and bfloat16, compared; the model used in Keras.

Everything it does is an `mptj` command that is printed before it runs; all files go to build/demo.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from mptraining import compare
from mptraining_trainer.host import native_bfloat16

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "demo"
JOB = ROOT / "demo" / "digits.yaml"
POLICIES = ("float32", "mixed_bfloat16")
ENOUGH = 0.95
# A CPU that emulates bfloat16 takes minutes for the wide net.
EMULATED_WIDTH = 256


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    say("1. Real data: 1,797 handwritten digits, written as TFRecords")
    run(sys.executable, "demo/digits.py", "build/demo")
    for part in ("train", "held-out"):
        mptj("records", "convert", f"build/demo/{part}.npz", "build/demo/records", "--name", part)
    for number, policy in enumerate(POLICIES, start=2):
        say(f"{number}. The same job under {policy}")
        mptj("run", str(job_under(policy).relative_to(ROOT)), "--output", f"build/demo/{policy}")
    say("4. Side by side")
    mptj("compare", *(f"build/demo/{policy}" for policy in POLICIES), "--html", "build/demo/compare.html")
    say("5. The exported model in plain Keras, on digits it has never seen")
    run(sys.executable, "demo/classify.py", f"build/demo/{POLICIES[-1]}/model", "build/demo/held-out.npz")
    say("6. The gain")
    print(gain())
    failed = [policy for policy in POLICIES if not accurate(policy)]
    return 1 if failed else 0


def job_under(policy: str) -> Path:
    """Write the demo's job under a policy to build/demo, with the model's code beside it."""
    job = yaml.safe_load(JOB.read_text())
    job["spec"]["precision"] = {"policy": policy}
    if not native_bfloat16():
        job["spec"]["program"]["function"]["arguments"]["width"] = EMULATED_WIDTH
    path = WORK / f"digits-{policy}.yaml"
    data = job["spec"]["data"]
    for split in ("train", "validation"):
        data[split] = [pattern.replace("../build/demo/", "") for pattern in data[split]]
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    shutil.copy(ROOT / "demo" / "wide_net.py", WORK)
    return path


def gain() -> str:
    """Return a sentence: how the measured time per step compares, and why."""
    compared = compare([str(WORK / policy) for policy in POLICIES]).to_document()["runs"]
    float32, bfloat16 = (float(run["step_seconds"]) for run in compared)
    measured = f"A step took {bfloat16 * 1000:.0f} ms in bfloat16, {float32 * 1000:.0f} ms in float32"
    if not native_bfloat16():
        return f"{measured}. This CPU emulates bfloat16 (no AVX512-BF16, no AMX); GPUs and TPUs compute in it."
    if bfloat16 < float32:
        return f"{measured}: {float32 / bfloat16:.2f} times as fast, because this CPU multiplies bfloat16 in hardware."
    return f"{measured}: no gain in this run. Was the machine busy?"


def accurate(policy: str) -> bool:
    result = json.loads((WORK / policy / "result.json").read_text())
    accuracy = next(value for name, value in result["metrics"].items() if name.startswith("val_") and "acc" in name)
    if accuracy < ENOUGH:
        print(f"demo: validation accuracy {accuracy:.4f} under {policy} is below {ENOUGH}", file=sys.stderr)
    return bool(accuracy >= ENOUGH)


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def mptj(*arguments: str) -> None:
    run("mptj", *arguments)


def run(*command: str) -> None:
    shown = ["python", *command[1:]] if command[0] == sys.executable else command
    print(f"$ {shlex.join(shown)}", flush=True)
    program = [sys.executable, "-m", "mptraining"] if command[0] == "mptj" else [command[0]]
    # TensorFlow's C++ greets on stderr; mptj keeps that away, a plain Keras script cannot.
    stderr = subprocess.PIPE if "classify" in command[1] else None
    done = subprocess.run([*program, *command[1:]], cwd=ROOT, check=False, stderr=stderr)
    if done.returncode != 0:
        sys.stderr.write((done.stderr or b"").decode(errors="replace"))
        sys.exit(done.returncode)


if __name__ == "__main__":
    sys.exit(main())
