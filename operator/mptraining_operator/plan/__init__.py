"""The pure function `plan(snapshot, now) -> Plan`, which decides everything about a job."""
