"""The pure function `plan(snapshot, now) -> Plan`, which makes every decision about a job."""
