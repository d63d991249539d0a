"""Names of the jobs of a trial."""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"^(?P<trial>.+-\d+)(?P<rung>-r\d+)?(?P<retry>-x\d+)?$")


def job_name(sweep: str, number: int, rung: int = 0, retry: int = 0) -> str:
    """Return the name of a trial's job: flowers-7, in rung 1 flowers-7-r1, at its second retry flowers-7-r1-x2."""
    return f"{sweep}-{number}" + (f"-r{rung}" if rung else "") + (f"-x{retry}" if retry else "")


def trial_name(job: str) -> str:
    """Return the name that all jobs of one trial share; a name of another form is returned as it is."""
    found = _SUFFIX.match(job)
    return found["trial"] if found else job
