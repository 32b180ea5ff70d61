"""URLs of object stores: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`."""

import re

# Environment variables with the credentials, by scheme of the URL.
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")


def scheme_of(location: str) -> str | None:
    """Return the URL's scheme in lower case, or None if `location` is the path of a folder."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def checked(location: str) -> str:
    """Check the location of a store, and return it: a URL without its last slash, or a folder unchanged.

    Raises `ValueError`. Its sentence does not repeat the URL, which may hold a secret.
    """
    scheme = scheme_of(location)
    if scheme is None:
        return location
    if scheme not in CREDENTIALS:
        raise ValueError("use a folder, or a URL that begins with s3://, gs:// or az://")
    bucket, _, prefix = location[len(scheme) + 3 :].partition("/")
    if "@" in location:
        raise ValueError(f"credentials do not belong into the URL: set {CREDENTIALS[scheme]}")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"the name of the bucket is not valid: write {scheme}://bucket/prefix")
    parts = prefix.rstrip("/").split("/")
    if not _PREFIX.fullmatch(prefix) or (prefix and any(part in ("", ".", "..") for part in parts)):
        raise ValueError("the prefix is not valid: use letters, digits, '.', '_', '-' between slashes")
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")
