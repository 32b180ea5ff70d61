// Angles between two lists of orthonormal vectors, in radians.

const MAX_SWEEPS = 30; // about eight are needed

const dot = (u, v) => u.reduce((sum, value, j) => sum + value * v[j], 0);

/** The angle between the lines along two unit vectors; by the sine, since a cosine near 1 has too few digits. */
export function angleBetween(u, v) {
  const difference = plus(u, dot(u, v) < 0 ? 1 : -1, v);
  return 2 * Math.asin(Math.min(1, Math.sqrt(dot(difference, difference)) / 2));
}

/** The principal angles between the spans of as many vectors, ascending: their squared sines are the eigenvalues of the residuals' Gram matrix. */
export function principalAngles(one, other) {
  const residuals = other.map((v) => one.reduce((rest, u) => plus(rest, -dot(u, v), u), Float64Array.from(v)));
  const squares = singularValues(residuals.map((u) => Float64Array.from(residuals, (v) => dot(u, v))));
  return squares.map((square) => Math.asin(Math.min(1, Math.sqrt(square)))).sort((a, b) => a - b);
}

const plus = (u, factor, v) => u.map((value, j) => value + factor * v[j]);

/** Of a matrix, by one-sided Jacobi rotations of its rows until all are orthogonal. */
function singularValues(rows) {
  for (let sweep = 0, turned = true; turned && sweep < MAX_SWEEPS; sweep++) {
    turned = false;
    for (let q = 1; q < rows.length; q++) for (let p = 0; p < q; p++) {
      const [u, v] = [rows[p], rows[q]];
      const [uu, vv, uv] = [dot(u, u), dot(v, v), dot(u, v)];
      if (Math.abs(uv) <= 1e-14 * Math.sqrt(uu * vv)) continue;
      turned = true;
      const cotangent = (vv - uu) / (2 * uv);
      const tangent = (Math.sign(cotangent) || 1) / (Math.abs(cotangent) + Math.hypot(1, cotangent));
      const cosine = 1 / Math.hypot(1, tangent);
      rows[p] = plus(u, -tangent, v).map((value) => cosine * value);
      rows[q] = plus(v, tangent, u).map((value) => cosine * value);
    }
  }
  return rows.map((u) => Math.sqrt(dot(u, u)));
}
