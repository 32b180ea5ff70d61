// A vector like those that the model has learned, from `v1/page/example`: {vector, coordinates, mean, scale, names}.

import { largest } from "./heatmap.js";

const DIGITS = 6;

/** The example's vector, with six digits of each entry's size. */
export function rounded({ vector, scale }) {
  const most = largest(vector);
  return vector.map((value, j) => {
    // Entries without a scale share their units, so that tiny ones become 0. With one, each has its own unit, 1 / scale.
    const size = scale === null ? most : Math.max(Math.abs(value), 1 / scale[j]);
    return roundedTo(value, size);
  });
}

export const roundedAlike = (vector) => vector.map((value) => roundedTo(value, largest(vector)));

function roundedTo(value, size) {
  const digits = DIGITS - 1 - Math.floor(Math.log10(size || 1));
  return Number(value.toFixed(Math.max(0, Math.min(100, digits)))) + 0;
}

/** The values by their names. */
export const recordOf = (values, names) => Object.fromEntries(names.map((name, j) => [name, values[j]]));
