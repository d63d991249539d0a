"""Patterns of text fields, each with the words in which a message describes it."""

from __future__ import annotations

# The name of a container, or of a runtime in the operator's settings: RFC 1123, as in Kubernetes.
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# The name of an object without a namespace: RFC 1123.
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
RUNTIME = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|None)$"
# The value of a label, which Kueue's label on a Job is.
LABEL_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
RESERVATION = r"^(projects/[a-z][-a-z0-9:.]{0,62}/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
TOPOLOGY = r"^[0-9]{1,3}(x[0-9]{1,3}){1,2}$"
PARTITION = r"^[1-7]g\.[0-9]{1,3}gb$"
SHA256 = r"^[0-9a-f]{64}$"
ENTRY_POINT = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
PARAMETER_PATH = r"^[A-Za-z0-9_-]+(\[[0-9]+\]|\.[A-Za-z0-9_-]+)*$"

# Without ^ and $, for parts and for `re.fullmatch`: RFC 1123, as in Kubernetes. NAME_PART has at most 63 characters.
NAME_PART = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_NAME = rf"{NAME_PART}(\.{NAME_PART})*"
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_NAME = rf"({DNS_NAME}/)?{_KEY}"
# Kubernetes checks the key of an annotation in small letters.
ANNOTATION_KEY = rf"({DNS_NAME.replace('a-z', 'A-Za-z')}/)?{_KEY}"

EXPECTED = {
    DNS_LABEL: "small letters, digits and dashes, no dash first or last, such as team-a",
    OBJECT_NAME: "small letters, digits, dashes and dots, a letter or digit first and last, such as gvisor",
    RUNTIME: "the name of a runtime, of small letters, digits and dashes, such as team-a; or None",
    LABEL_VALUE: "letters, digits, dashes, dots and underscores, a letter or digit first and last, such as team-a",
    RESERVATION: "a name of small letters, digits and dashes, a letter first, such as team-t4, or "
    "projects/PROJECT/reservations/NAME",
    TOPOLOGY: "a topology such as 2x4 or 4x4x4",
    PARTITION: "a MIG profile, such as 3g.20gb",
    SHA256: "64 hexadecimal digits, in small letters",
    ENTRY_POINT: "module:function, such as flowers.model:build",
    PARAMETER_PATH: "a path of fields with dots, such as training.optimizer.config.learning_rate, with [0] for an item",
}
# Names of objects, which a similar name may be suggested for.
NAMES = (DNS_LABEL, OBJECT_NAME, RUNTIME, LABEL_VALUE, RESERVATION)
