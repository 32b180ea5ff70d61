// Numbers and times as text.

const whole = new Intl.NumberFormat("en");
const abridged = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const sum = (values) => values.reduce((total, value) => total + value, 0);

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

/** Such as 12.5K. */
export const compact = (n) => abridged.format(n);

export const perSecond = (rate) => (rate === null ? "–" : `${rate < 10 ? short(rate) : count(Math.round(rate))}/s`);

/** Three significant digits, four near 100: 12.3 %, 0.0456 %, 99.97 %. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = 100 * share;
  if (value > 0 && value < 0.001) return "below 0.001 %";
  return `${Number(value.toPrecision(value > 99 ? 4 : 3))} %`;
}

/** Shares that are multiples of a step, with as many digits as it has. */
export function percents(shares, step) {
  const isWhole = (value) => Math.abs(value - Math.round(value)) < 1e-6 && value > 0.5;
  let digits = 0;
  while (digits < 8 && !isWhole(100 * step * 10 ** digits)) digits++;
  return shares.map((share) => `${(100 * share).toFixed(digits)} %`);
}

const MAX_NAME = 40; // letters of a dimension's name

/** A dimension's name, cut; its index if it has none. */
export const dimension = (name) => (`${name}`.length > MAX_NAME ? `${name.slice(0, MAX_NAME)}…` : `${name}`);

/** Four significant digits. */
export function short(value) {
  const size = Math.abs(value);
  return size > 0 && (size < 1e-4 || size >= 1e9) ? value.toExponential(3) : Number(value.toPrecision(4)).toString();
}

/** With its sign, also of a positive number; a real minus sign. */
export const signed = (value, asText) => `${value < 0 ? "−" : "+"}${asText(Math.abs(value))}`;

/** Degrees, with two significant digits. */
export const angle = (degrees) => (degrees < 0.001 ? "<0.001°" : `${Number(degrees.toPrecision(2))}°`);

export const degrees = (radians) => (180 / Math.PI) * radians;

export const time = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour12: false });

/** As of ISO 8601, for programs. */
export const utc = (seconds) => new Date(1000 * seconds).toISOString();

/** With its date. */
export const moment = (seconds) => `${day(seconds)}, ${time(seconds)}`;

const day = (seconds) => new Date(1000 * seconds).toLocaleDateString([], { day: "numeric", month: "short" });

/** Times; below the first one, and the first one of each day, its date. */
export function moments(all) {
  return all.map((at, i) => (i && day(all[i - 1]) === day(at) ? time(at) : `${time(at)}\n${day(at)}`));
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

/** Durations, in the largest unit of which the longest has at least two. */
export function spans(all) {
  const longest = Math.max(...all.map(Math.abs));
  const [size, name] = UNITS.find(([size]) => longest >= 2 * size) ?? [1, "s"];
  return all.map((seconds) => `${Number((seconds / size).toPrecision(3))} ${name}`);
}

/** A duration in the largest unit of which it has at least two. */
export function duration(seconds) {
  for (const [size, name] of UNITS) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}
