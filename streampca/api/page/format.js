// Numbers and times as text.

const whole = new Intl.NumberFormat("en");

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

/** Three significant digits, four near 100: 12.3 %, 0.0456 %, 99.97 %. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = 100 * share;
  if (value > 0 && value < 0.001) return "below 0.001 %";
  return `${Number(value.toPrecision(value > 99 ? 4 : 3))} %`;
}

/** Shares that are this step apart, with as many digits as tell them apart. */
export function percents(shares, step) {
  const digits = Math.min(Math.max(0, Math.ceil(-Math.log10(100 * step) - 1e-9)), 8);
  return shares.map((share) => `${(100 * share).toFixed(digits)} %`);
}

/** Four significant digits. */
export function short(value) {
  const size = Math.abs(value);
  return size > 0 && (size < 1e-4 || size >= 1e9) ? value.toExponential(3) : Number(value.toPrecision(4)).toString();
}

/** With its sign, also of a positive number; a real minus sign. */
export const signed = (value, asText) => `${value < 0 ? "−" : "+"}${asText(Math.abs(value))}`;

/** An angle in radians as degrees, with two significant digits. */
export const angle = (radians) => `${Number(((180 / Math.PI) * radians).toPrecision(2))}°`;

export const time = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour12: false });

/** Times; below the first one, and the first one of each day, its date. */
export function moments(all) {
  const day = (seconds) => new Date(1000 * seconds).toLocaleDateString([], { day: "numeric", month: "short" });
  return all.map((at, i) => (i && day(all[i - 1]) === day(at) ? time(at) : `${time(at)}\n${day(at)}`));
}

/** A duration in the largest unit of which it has at least two. */
export function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}
