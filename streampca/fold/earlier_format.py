"""Converts the content of files that the previous release has written into today's formats.

Each release reads the files of the previous release, so what was learned survives an upgrade. When a format changes,
this module is rewritten for the format that the change replaces. Files that are still older are refused (`npz.decode`).

The previous release kept an array `unseen`, u (d,). For each entry it is the share of the weight that belongs to
messages before the first message with this entry. The covariance Σ counted these messages as zeros. Whoever read Σ had
to divide it by the share of the weight for which both entries were known:

    Σ_ij / N_ij        with N_ij = 1 − max(u_i, u_j), the smaller of the two shares 1 − u_i and 1 − u_j

Today Σ is kept after this division, and N is kept as `known`. If no entry was ever missing, a file has neither u nor N,
and nothing is converted.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DamagedFileError
from streampca.pca.arrays import limit_correlations

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

_NEVER_SEEN = 1e-12  # an entry that is known for a smaller share of the weight was never seen
_ALL_KNOWN = 1.0 - 1e-9  # a share of the weight from here on counts as 1, despite rounding
_ROUNDING = 1e-12  # an entry of an axis up to this is 0


@np.errstate(all="ignore")  # a damaged file may hold any numbers; they are refused later
def upgrade_checkpoint(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Convert header and arrays of a checkpoint from format 3 to format 4. Raises `DamagedFileError`."""
    header = {name: value for name, value in header.items() if name != "incomplete"}  # format 4 lacks this field
    arrays = dict(arrays)
    unseen = arrays.pop("unseen", None)
    if unseen is None:  # every message was complete
        return header, arrays
    _refuse_wrong_arrays(unseen, arrays)
    known = np.where(unseen > 1.0 - _NEVER_SEEN, 0.0, 1.0 - unseen)  # for each entry, (d,)
    divisor = np.where(known > 0, known, 1.0)  # the sums of an entry that was never seen are 0, and stay 0
    if "covariance" in arrays:
        d = len(unseen)
        lower = np.tril_indices(d)
        covariance = np.zeros((d, d))
        covariance[lower] = arrays["covariance"]
        covariance /= np.minimum.outer(divisor, divisor)
        # If entries were missing, the previous release could keep correlations above 1.
        arrays["covariance"] = limit_correlations(covariance)[lower]
        known = np.minimum.outer(known, known)[lower]  # for each pair, packed
    elif "variances" in arrays:
        arrays["variances"] = arrays["variances"] / divisor
    if known.min(initial=1.0) < _ALL_KNOWN:
        arrays["known"] = known
    return header, arrays


@np.errstate(all="ignore")
def upgrade_model(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Convert header and arrays of a model from format 2 to format 3.

    A model of format 2 does not say which dimensions were never seen. If vectors may lack entries, a dimension counts
    as never seen if its mean is exactly 0 and its entry in each axis is 0. Then its N is 0. The N of all others is 1.
    """
    mean = arrays.get("mean")
    components = arrays.get("components")
    variance = arrays.get("explained_variance")
    settings = header.get("settings")
    impute = isinstance(settings, dict) and settings.get("missing") == "impute"
    if not impute or mean is None or components is None or variance is None:
        return header, arrays
    is_damaged = components.ndim != 2 or mean.shape != components.shape[1:] or variance.shape != components.shape[:1]
    if is_damaged:  # `model_file.decode` refuses it
        return header, arrays
    largest_entries = np.abs(components[variance > 0]).max(axis=0, initial=0.0)
    seen = (mean != 0) | (largest_entries > _ROUNDING)
    if seen.all():
        return header, arrays
    arrays = arrays | {"seen": seen}
    if "learned" in arrays:
        is_covariance = arrays["learned"].ndim == 1
        known = np.minimum.outer(seen, seen)[np.tril_indices(len(seen))] if is_covariance else seen
        arrays["known"] = known.astype(np.float64)
    return header, arrays


def _refuse_wrong_arrays(unseen: NDArray[Any], arrays: Arrays) -> None:
    """Raise `DamagedFileError` if the arrays to convert do not fit each other, or `unseen` does not hold shares."""
    d = unseen.size
    lengths = {"unseen": d, "covariance": d * (d + 1) // 2, "variances": d}  # Σ is packed
    to_convert = {"unseen": unseen} | {name: array for name, array in arrays.items() if name in lengths}
    have_types = all(
        array.shape == (lengths[name],) and array.dtype == np.float64 for name, array in to_convert.items()
    )
    are_shares = ((unseen >= 0) & (unseen <= 1.0 + 1e-6)).all()
    if not have_types or not are_shares:
        raise DamagedFileError("unseen does not fit the other arrays, or holds values that are not shares")
