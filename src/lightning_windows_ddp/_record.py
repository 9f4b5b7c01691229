"""The list of a distribution's installed files, `RECORD`: https://packaging.python.org/specifications/recording-installed-packages."""

import base64
import csv
import hashlib
import io


def hashes(record: bytes) -> dict[str, str]:
    """Return the hash that a RECORD has for each file, such as `sha256=...`; empty if it has none."""
    return {row[0]: row[1] for row in _rows(record) if len(row) > 1}


def hash_of(content: bytes) -> str:
    """Return the hash of a file in the way in which a RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def update(record: bytes, files: dict[str, bytes | None]) -> bytes:
    """Return a RECORD with other files.

    Args:
        record: The RECORD.
        files: The content of each changed or added file; None for a file whose content is not known yet.

    """
    rows = _rows(record)
    known = {row[0]: row for row in rows}
    for path, content in files.items():
        row = known.get(path)
        if row is None:
            row = [path, "", ""]
            rows.append(row)
        row[1:] = ["", ""] if content is None else [hash_of(content), str(len(content))]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n" if b"\r\n" in record else "\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _rows(record: bytes) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(record.decode("utf-8"), newline="")) if row]
