"""URLs of object stores: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`; and of plug-ins."""

import re

from streampca.settings.plug_ins import load_plug_in

# Environment variables with the credentials, by scheme of the URL.
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

SIDECAR_SCHEMES = ("http", "https")  # by which commands tell the address of a sidecar from the location of a store
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")


def find_scheme(location: str) -> str | None:
    """Return the URL's scheme in lower case, or None if `location` is the path of a folder."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def is_bucket(location: str) -> bool:
    """Return whether `location` is a bucket's URL, and not a folder or a plug-in's URL."""
    return find_scheme(location) in CREDENTIALS


def validate_location(location: str) -> str:
    """Return the location of a store; a bucket's URL loses its last slash.

    Raises `ValueError` if a URL is not valid. The error does not repeat the URL, which may hold a secret.
    """
    scheme = find_scheme(location)
    if scheme is None:
        return location
    is_scheme_of_bucket = scheme in CREDENTIALS  # each kind of bucket has its own credentials
    is_reserved = is_scheme_of_bucket or scheme in SIDECAR_SCHEMES
    # A plug-in must not offer a scheme that streampca uses itself: s3, for example, is for buckets, and http for
    # sidecars. `load_plug_in` raises `ValueError` if a plug-in does.
    plug_in = load_plug_in("store", scheme, is_reserved=is_reserved)
    if plug_in is not None:
        return location
    if not is_scheme_of_bucket:
        raise ValueError(
            "use a folder, or a URL that begins with s3://, gs:// or az://, or with the scheme of an installed plug-in"
        )
    return _validate_bucket(location, scheme)


def _validate_bucket(location: str, scheme: str) -> str:
    """Return the URL of a bucket without its last slash. Raises `ValueError`."""
    without_scheme = location[len(f"{scheme}://") :]
    bucket, _, prefix = without_scheme.partition("/")
    if "@" in location:
        raise ValueError(f"credentials do not belong into the URL: set {CREDENTIALS[scheme]}")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"the name of the bucket is not valid: write {scheme}://bucket/prefix")
    folders = prefix.rstrip("/").split("/") if prefix else []
    has_wrong_folder = any(folder in ("", ".", "..") for folder in folders)
    if not _PREFIX.fullmatch(prefix) or has_wrong_folder:
        raise ValueError("the prefix is not valid: use letters, digits, '.', '_', '-' between slashes")
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")
