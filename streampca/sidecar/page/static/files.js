// Files that a reader saves: the numbers of a chart as CSV, what it shows as PNG.

import { colour } from "./dom.js";

const MARGIN = 12; // around a picture, in pixels
const TITLE = 32; // height of its title
const MAX_SIDE = 16_000; // pixels that browsers' canvases allow

let origin = ""; // topic and version, for the names of files

export function setOrigin({ topic, version }) {
  origin = `${topic}-version-${version}`;
}

/** Such as readings-version-1200-explained-variance-20260102T030405Z.csv. */
export function nameOf(title, kind) {
  const stamp = new Date().toISOString().replace(/[-:]|\..*(?=Z)/g, "");
  return `${origin}-${title.toLowerCase().replace(/\W+/g, "-")}-${stamp}.${kind}`;
}

export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** {columns, rows} as CSV (RFC 4180); null is an empty cell. */
export function csvOf({ columns, rows }) {
  return new Blob([columns, ...rows].map((cells) => `${cells.map(cell).join(",")}\r\n`), { type: "text/csv" });
}

function cell(value) {
  const text = typeof value === "string" ? value.replace(/^[=+@-]/, "'$&") : `${value ?? ""}`; // a spreadsheet runs no formula
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A picture of an element's canvases, bars, keys and texts under a title, in the colours of the page. */
export function pngOf(part, title) {
  const { left, top, width, height } = part.getBoundingClientRect();
  const [full, tall] = [width + 2 * MARGIN, TITLE + height + MARGIN];
  const scale = Math.min(devicePixelRatio, MAX_SIDE / Math.max(full, tall));
  const canvas = new OffscreenCanvas(scale * full, scale * tall);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = colour("card");
  context.fillRect(0, 0, full, tall);
  Object.assign(context, { textBaseline: "middle", imageSmoothingEnabled: false });
  write(context, title, part.closest("section").querySelector("h2"), MARGIN, TITLE / 2);
  context.translate(MARGIN - left, TITLE - top);
  for (const drawn of part.querySelectorAll("canvas")) {
    const box = drawn.getBoundingClientRect();
    context.drawImage(drawn, box.left, box.top, box.width, box.height);
  }
  for (const bar of part.querySelectorAll(".bar > span")) {
    const box = bar.getBoundingClientRect();
    context.fillStyle = getComputedStyle(bar).backgroundColor;
    context.fillRect(box.left, box.top, box.width, box.height);
  }
  for (const key of part.querySelectorAll(".u-marker")) {
    const [box, { borderTopColor, borderTopStyle }] = [key.getBoundingClientRect(), getComputedStyle(key)];
    if (borderTopStyle === "none") continue; // of the horizontal axis
    context.fillStyle = borderTopColor;
    context.fillRect(box.left, box.top, box.width, box.height);
  }
  for (const { word, parent, box } of wordsIn(part)) write(context, word, parent, box.left, box.top + box.height / 2);
  return canvas.convertToBlob();
}

function write(context, text, styled, x, y) {
  const { color, fontFamily, fontSize, fontWeight } = getComputedStyle(styled);
  context.font = `${fontWeight} ${fontSize} ${fontFamily}`;
  context.fillStyle = color;
  context.fillText(text, x, y);
}

/** The words that are seen, each where it is: a text may have several lines. */
function* wordsIn(part) {
  const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = texts.nextNode(); node; node = texts.nextNode()) for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    if (box.width) yield { word, parent: node.parentElement, box };
  }
}
