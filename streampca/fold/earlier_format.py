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
from streampca.pca.arrays import find_smaller_of_each_pair, limit_correlations

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

# Rounding is the only difference …
_ROUNDED_ZERO = 1e-12  # … between 0 and a smaller share of the weight
_ROUNDED_ONE = 1.0 - 1e-9  # … between 1 and a larger share of the weight
_ROUNDING = 1e-12  # … between 0 and a smaller entry of an axis


@np.errstate(all="ignore")  # a damaged file may hold any numbers; they are refused later
def upgrade_checkpoint(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Convert header and arrays of a checkpoint from format 3 to format 4. Raises `DamagedFileError`.

    Format 3 counts an entry as 0 in all messages before the first message with this entry, and holds their share u of
    the weight (`unseen`). Format 4 leaves these messages out, and holds the share 1 − u of all other messages
    (`known`). So variances and covariances of format 3 are divided by 1 − u.
    """
    # Format 4 has no field "incomplete".
    header = {name: value for name, value in header.items() if name != "incomplete"}
    arrays = dict(arrays)
    unseen = arrays.pop("unseen", None)  # u (d,)
    if unseen is None:  # no entry was ever missing
        return header, arrays
    _refuse_wrong_arrays(unseen, arrays)
    was_never_seen = unseen > 1.0 - _ROUNDED_ZERO
    entry_shares = np.where(was_never_seen, 0.0, 1.0 - unseen)  # 1 − u (d,)
    # If an entry was never seen, its variance is 0. Dividing by 1 leaves it 0, and 0/0 would be NaN.
    divisor = np.where(was_never_seen, 1.0, entry_shares)
    if "covariance" in arrays:
        arrays["covariance"] = _divide_covariance(arrays["covariance"], divisor)
        # A pair of entries is known since the first message with the entry that began later. Packed like Σ.
        known = find_smaller_of_each_pair(entry_shares)
    else:
        known = entry_shares
        if "variances" in arrays:
            arrays["variances"] = arrays["variances"] / divisor
    was_any_missing = known.min(initial=1.0) < _ROUNDED_ONE
    if was_any_missing:  # without `known` in the file, all shares are 1
        arrays["known"] = known
    return header, arrays


@np.errstate(all="ignore")  # a damaged file may hold any numbers
def upgrade_model(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Convert header and arrays of a model from format 2 to format 3, which marks the dimensions that were seen.

    A dimension was never seen if its mean and its entries in all axes are 0.
    """
    mean = arrays.get("mean")
    components = arrays.get("components")
    variance = arrays.get("explained_variance")
    settings = header.get("settings")
    may_have_gaps = isinstance(settings, dict) and settings.get("missing") == "impute"
    if not may_have_gaps or mean is None or components is None or variance is None:
        return header, arrays
    is_damaged = components.ndim != 2 or mean.shape != components.shape[1:] or variance.shape != components.shape[:1]
    if is_damaged:  # `model_file.decode` refuses it
        return header, arrays
    axes_with_variance = components[variance > 0]  # the direction of other axes is arbitrary
    largest_entries = np.abs(axes_with_variance).max(axis=0, initial=0.0)
    is_seen = (mean != 0) | (largest_entries > _ROUNDING)
    if is_seen.all():
        return header, arrays
    arrays = arrays | {"seen": is_seen}
    # A file of `streampca fit` holds `learned`: a packed Σ, with a number for each pair of dimensions, or axes (d, r).
    # Format 3 adds the array `known`. Beside axes, `known` is 1 for each dimension that was seen, and 0 for the rest.
    # Beside a packed Σ, `known` is 1 for each pair of dimensions that were both seen, and 0 for the rest.
    covariance_or_axes = arrays.get("learned")
    if covariance_or_axes is not None:
        is_covariance = covariance_or_axes.ndim == 1
        is_known = find_smaller_of_each_pair(is_seen) if is_covariance else is_seen  # False is smaller than True
        arrays["known"] = is_known.astype(np.float64)
    return header, arrays


def _divide_covariance(packed: NDArray[Any], divisor: NDArray[Any]) -> NDArray[Any]:
    """Return a packed Σ (its lower triangle, row by row) with each Σ_ij divided by min(divisor_i, divisor_j).

    For each entry, Σ counts the messages before the first message with this entry as zeros. `divisor` (d,) is the share
    of the weight since that first message. A pair of entries has the smaller of its two shares.
    """
    d = len(divisor)
    lower = np.tril_indices(d)
    covariance = np.zeros((d, d))
    covariance[lower] = packed / find_smaller_of_each_pair(divisor)
    # In files of the previous release, correlations may exceed ±1.
    return limit_correlations(covariance)[lower]


def _refuse_wrong_arrays(unseen: NDArray[Any], arrays: Arrays) -> None:
    """Raise `DamagedFileError` if a number in `unseen` (d,) is not a share, or if an array has a wrong size or type.

    Checks the arrays that `upgrade_checkpoint` converts. A file may lack `covariance` and `variances`.
    """
    d = unseen.size
    expected_lengths = {"unseen": d, "covariance": d * (d + 1) // 2, "variances": d}  # Σ is packed
    to_convert = {"unseen": unseen} | {name: array for name, array in arrays.items() if name in expected_lengths}
    have_expected_types = all(
        array.shape == (expected_lengths[name],) and array.dtype == np.float64 for name, array in to_convert.items()
    )
    are_shares = ((unseen >= 0) & (unseen <= 1.0 + 1e-6)).all()  # 0 … 1, apart from rounding
    if not have_expected_types or not are_shares:
        raise DamagedFileError("unseen does not fit the other arrays, or holds values that are not shares")
