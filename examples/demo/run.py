"""`make demo`: digits as TFRecords; a job trained, compared, killed and resumed; its model used in plain Keras.

Everything it does is a command that is printed before it runs; all files go to build/demo.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "demo"
# Accuracy is 0.95 to 0.98 on every CPU that was tried. The bar finds a run that did not train, not a weak one.
ENOUGH = 0.9
# Below this ratio noise would decide which policy is ahead.
WORTHWHILE = 1.15


@dataclass(frozen=True, kw_only=True)
class Size:
    """What fits the CPU: width of the net, examples a step, epochs, and steps between two checkpoints."""

    width: int
    batch: int
    epochs: int
    save: int


# Matrix products take most of a step of the wide net; the start of a step takes most of the narrow one's.
WIDE = Size(width=2048, batch=256, epochs=10, save=5)
NARROW = Size(width=128, batch=64, epochs=80, save=160)


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    say("1. Data: 1,797 handwritten digits of 8x8 pixels become TFRecords")
    run("python", "examples/demo/digits.py", "build/demo")
    for part in ("train", "held-out"):
        run("mptj", "records", "convert", f"build/demo/{part}.npz", "build/demo/records", "--name", part)
    ratio = bfloat16_ratio()
    return in_bfloat16(ratio) if ratio >= WORTHWHILE else against_fit(ratio)


def bfloat16_ratio() -> float:
    """Return how many times as fast this CPU multiplies in bfloat16 as in float32, measured; 0 if TensorFlow fails.

    Flags in /proc/cpuinfo do not decide: with oneDNN limited to AVX2, TensorFlow aborts on a CPU that reports bfloat16.
    """
    done = subprocess.run(program(["python", "examples/demo/bfloat16.py"]), cwd=ROOT, check=False, capture_output=True)
    return float(done.stdout) if done.returncode == 0 else 0.0


def in_bfloat16(ratio: float) -> int:
    """Train in both policies: this CPU multiplies bfloat16 faster than float32."""
    say("2. A job file, trained here on two replicas, each with half of every batch")
    float32, bfloat16 = (write_job(policy, WIDE) for policy in ("float32", "mixed_bfloat16"))
    train(float32)
    say(f"3. The same job in bfloat16: this CPU multiplies such matrices {ratio:.1f} times as fast")
    train(bfloat16)
    run("mptj", "compare", "build/demo/float32", "build/demo/mixed_bfloat16")
    seconds = [result(policy)["stepSeconds"] for policy in ("float32", "mixed_bfloat16")]
    gain = f"{milliseconds(seconds[1])} a step in bfloat16, {milliseconds(seconds[0])} in float32"
    return finish(bfloat16, gain + times(seconds[0] / seconds[1]))


def against_fit(ratio: float) -> int:
    """Train in float32 and by plain `fit`: this CPU has no fast bfloat16."""
    say("2. A job file, trained here on two replicas, each with half of every batch")
    job = write_job("float32", NARROW)
    train(job)
    say("3. The same net, data and batch size with plain Keras, model.fit")
    speed = f"multiplies bfloat16 at {ratio:.2f} times the speed of float32" if ratio else "does not multiply bfloat16"
    print(f"Mixed precision is for other machines: this CPU {speed}.")
    plain = float(read("python", "examples/demo/plain_fit.py", "build/demo", str(NARROW.width), str(NARROW.batch)))
    seconds = result("float32")["stepSeconds"]
    print(f"model.fit: {milliseconds(plain)} a step")
    gain = f"{milliseconds(seconds)} a step on two replicas with fused steps, {milliseconds(plain)} in model.fit"
    return finish(job, gain + times(plain / seconds))


def finish(job: Path, gain: str) -> int:
    """Kill and resume the job, use its model, and say what was gained."""
    say("4. The same job, killed with SIGKILL half way; the same command resumes it")
    steps = result(job.stem)["step"]
    killed_at = kill_half_way(job, steps)
    train(job, "killed", quiet=True)
    digests = [weights_digest(name) for name in (job.stem, "killed")]
    same = digests[0] == digests[1]
    print(f"weights, never killed         sha256 {digests[0]}")
    print(f"weights, killed and resumed   sha256 {digests[1]}  {'equal, bit for bit' if same else 'DIFFERENT'}")
    say("5. The exported model in plain Keras, on digits it has never seen")
    run("python", "examples/demo/classify.py", f"build/demo/{job.stem}/model", "build/demo/held-out.npz")
    say("6. What this showed")
    print(f"Speed       {gain}.")
    print(
        f"Recovery    Killed after step {killed_at} of {steps}, resumed to {'the same' if same else 'OTHER'} weights."
    )
    print("Export      A float32 model that plain Keras loads.\n")
    print("Next: mptj board build/demo                         curves of these runs in the browser")
    print("      mptj init --help                              a job file for your own data")
    print("      mptj submit build/demo/float32.yaml --dry-run what a cluster would get")
    accuracy = result(job.stem)["metrics"]["val_accuracy"]
    if accuracy < ENOUGH:
        print(f"demo: validation accuracy {accuracy:.4f} is below {ENOUGH}", file=sys.stderr)
    return 0 if same and accuracy >= ENOUGH else 1


def write_job(policy: str, size: Size) -> Path:
    """Write examples/demo/digits.yaml under a policy and in a size to build/demo, with the model's code."""
    job = yaml.safe_load((ROOT / "examples" / "demo" / "digits.yaml").read_text())
    spec = job["spec"]
    spec["precision"] = {"policy": policy}
    spec["program"]["function"]["arguments"]["width"] = size.width
    spec["training"] |= {"epochs": size.epochs, "batchSize": {"global": size.batch}}
    spec["checkpoint"] = {"everySteps": size.save}
    for split in ("train", "validation"):
        spec["data"][split] = [pattern.replace("../build/demo/", "") for pattern in spec["data"][split]]
    shutil.copy(ROOT / "examples" / "demo" / "wide_net.py", WORK)
    path = WORK / f"{policy}.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def kill_half_way(job: Path, steps: int) -> int:
    """Start the job and kill all its processes once half of its steps are in a checkpoint; return that step."""
    command = ["mptj", "run", str(job.relative_to(ROOT)), "--run-folder", "build/demo/killed"]
    print(f"$ {shlex.join(command)}", flush=True)
    with subprocess.Popen(program(command), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            saved = [int(path.parent.name.rpartition("-")[2]) for path in WORK.glob("killed/checkpoints/*/state.json")]
            if max(saved, default=0) >= steps // 2:
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                for member in family:
                    member.send_signal(signal.SIGKILL)
                print(f"SIGKILL to its {len(family)} processes; the newest checkpoint is of step {max(saved)}")
                return max(saved)
            time.sleep(0.02)
    sys.exit("demo: the run ended before it was killed")


def train(job: Path, name: str = "", *, quiet: bool = False) -> None:
    run("mptj", "run", str(job.relative_to(ROOT)), "--run-folder", f"build/demo/{name or job.stem}", last_only=quiet)


def weights_digest(name: str) -> str:
    """Return the first half of the SHA-256 of a model's arrays, by name."""
    digest = hashlib.sha256()
    with np.load(WORK / name / "model" / "weights.npz") as arrays:
        for key in sorted(arrays.files):
            digest.update(key.encode() + arrays[key].tobytes())
    return digest.hexdigest()[:32]


def result(name: str) -> dict[str, Any]:
    """Return result.json of a run."""
    document: dict[str, Any] = json.loads((WORK / name / "result.json").read_text())
    return document


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def times(ratio: float) -> str:
    if ratio >= 1.05:
        return f": {ratio:.1f} times as fast"
    return ", no gain in this run, perhaps because the machine was busy"


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def program(command: list[str]) -> list[str]:
    return {"mptj": [sys.executable, "-m", "mptraining"], "python": [sys.executable]}[command[0]] + command[1:]


def read(*command: str) -> str:
    """Print and run a command; return its output. On failure, end with its messages."""
    print(f"$ {shlex.join(command)}", flush=True)
    # TensorFlow's C++ greets on stderr, which a plain Keras script cannot prevent.
    done = subprocess.run(program([*command]), cwd=ROOT, check=False, capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}demo: {shlex.join(command)} ended with exit code {done.returncode}")
    return done.stdout


def run(*command: str, last_only: bool = False) -> None:
    """Print and run a command and show its output, or only what it reports at the end."""
    if last_only or command[0] == "python":
        output = read(*command).rstrip().splitlines()
        start = next((n for n, line in enumerate(output) if line.startswith("Succeeded")), 0) if last_only else 0
        print("\n".join(output[start : start + 1] if last_only else output), flush=True)
        return
    print(f"$ {shlex.join(command)}", flush=True)
    done = subprocess.run(program([*command]), cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"demo: {shlex.join(command)} ended with exit code {done.returncode}")


if __name__ == "__main__":
    # Commands print non-ASCII characters under every locale.
    os.environ.setdefault("PYTHONUTF8", "1")
    sys.exit(main())
