"""Files of the release before this one, as this release would have written them.

Each release reads the files of the one before it: what was learned survives an upgrade. When a format changes, this
module is rewritten for the format that the change replaces, and files that are still older are refused (`npz.decode`).

The release before had one share u (d,), `unseen`: of the weight of messages before the first that shows an entry. It
kept Σ with zeros for the time before, and divided by the weight since both entries were seen when it read Σ:

    Σ_ij / (1 − max(u_i, u_j)),        so a pair has been known for N_ij = min(1 − u_i, 1 − u_j)

Now Σ is kept as it is read. Complete streams have no u, and are read as they are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DamagedFileError
from streampca.pca.arrays import limit_correlations

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

_NEVER = 1e-12  # weight: an entry that was seen for less was never seen
_ROUNDING = 1e-12  # of the entries of an axis
_WHOLE = 1e-9  # weight: a pair that lacks less is known for all of it


@np.errstate(all="ignore")  # of damaged files, whose numbers are refused later
def checkpoint(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Header and arrays of a checkpoint of format 3, in format 4. Raises `DamagedFileError`."""
    header = {name: value for name, value in header.items() if name != "incomplete"}
    arrays = dict(arrays)
    unseen = arrays.pop("unseen", None)
    if unseen is None:  # every message was complete
        return header, arrays
    _refuse_misfits(unseen, arrays)
    known = np.where(unseen > 1.0 - _NEVER, 0.0, 1.0 - unseen)
    divisor = np.where(known > 0, known, 1.0)  # of an entry that was never seen, all sums are 0
    if "covariance" in arrays:
        d = len(unseen)
        covariance, lower = np.zeros((d, d)), np.tril_indices(d)
        covariance[lower] = arrays["covariance"]
        covariance /= np.minimum.outer(divisor, divisor)
        # The release before could keep larger correlations than 1 of entries with gaps.
        arrays["covariance"] = limit_correlations(covariance)[lower]
        known = np.minimum.outer(known, known)[lower]
    elif "variances" in arrays:
        arrays["variances"] = arrays["variances"] / divisor
    if known.min(initial=1.0) < 1.0 - _WHOLE:
        arrays["known"] = known
    return header, arrays


@np.errstate(all="ignore")
def model(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Header and arrays of a model of format 2, in format 3.

    A model had no u. Where vectors may lack entries, a dimension with a mean of exactly 0 and no part in any axis was
    never seen (or was always 0, of which nothing is lost): its N is 0, and that of all others 1.
    """
    mean, components, variance = (arrays.get(name) for name in ("mean", "components", "explained_variance"))
    settings = header.get("settings")
    impute = isinstance(settings, dict) and settings.get("missing") == "impute"
    if not impute or mean is None or components is None or variance is None:
        return header, arrays
    if components.ndim != 2 or mean.shape != components.shape[1:] or variance.shape != components.shape[:1]:
        return header, arrays  # damaged, and refused later
    share = np.abs(components[variance > 0]).max(axis=0, initial=0.0)
    seen = (mean != 0) | (share > _ROUNDING)
    if seen.all():
        return header, arrays
    arrays = arrays | {"seen": seen}
    if "learned" in arrays:
        d, is_covariance = len(seen), arrays["learned"].ndim == 1
        known = np.minimum.outer(seen, seen)[np.tril_indices(d)] if is_covariance else seen
        arrays["known"] = known.astype(np.float64)
    return header, arrays


def _refuse_misfits(unseen: NDArray[Any], arrays: Arrays) -> None:
    """Raise `DamagedFileError` unless the arrays to convert are numbers of one size, and `unseen` shares."""
    d = unseen.size
    sizes = {"covariance": d * (d + 1) // 2, "variances": d}
    found = [(unseen, d), *((arrays[name], size) for name, size in sizes.items() if name in arrays)]
    fit = all(array.shape == (size,) and array.dtype == np.float64 for array, size in found)
    if not (fit and ((unseen >= 0) & (unseen <= 1.0 + 1e-6)).all()):
        raise DamagedFileError("unseen does not fit the other arrays, or holds values that are not shares")
