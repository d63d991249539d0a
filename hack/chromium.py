"""Debian's Chromium for the tests in a browser: installed where it is absent and this is root.

Exit code 3: it is absent, and there is no apt-get or no root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# Without a font Chromium draws boxes.
PACKAGES = ("chromium", "fonts-liberation")
NOT_HERE = 3


def main() -> int:
    if shutil.which("chromium"):
        return 0
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    if shutil.which("apt-get") is None:
        print("no chromium command, and no Debian that could install it: install Chromium", file=sys.stderr)
        return NOT_HERE
    if os.geteuid() != 0:
        print(f"no chromium command. As root: {' '.join(command)}", file=sys.stderr)
        return NOT_HERE
    print(f"installing Debian packages: {' '.join(PACKAGES)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-qq"], command):
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{' '.join(step)} ended with {done.returncode}:\n{done.stderr.strip()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
